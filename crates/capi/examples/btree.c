/* A B+-tree over working memory of which an eighth fits: a million keys inserted (or as many as
 * are asked for), then each looked up again. Nodes are pages, pinned while they are used: no copies, and no faults.
 *
 *   cc btree.c -o btree $(pkg-config --cflags --libs pagekeeper) && ./btree
 */
#include <pagekeeper.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS_MAX = 254 };

/* A page: in a leaf, value i belongs to key i; elsewhere, child i has keys below key i, and the
 * last child the rest. */
struct node {
    uint32_t is_leaf, keys;
    uint64_t key[KEYS_MAX];
    uint64_t link[KEYS_MAX + 1];
};
_Static_assert(sizeof(struct node) <= PK_PAGE_BYTES, "a node is a page");

struct tree {
    pk_segment *pages;
    uint64_t root, used;
};

static void must(long long result)
{
    if (result >= 0) return;
    fprintf(stderr, "btree: %s\n", pk_last_error());
    exit(1);
}

static struct node *pin(struct tree *tree, uint64_t page, pk_pin_mode mode, pk_pin **pin)
{
    must(pk_segment_pin(tree->pages, page * PK_PAGE_BYTES, sizeof(struct node), mode, pin));
    return mode == PK_PIN_EXCLUSIVE ? pk_pin_data_mut(*pin) : (void *)pk_pin_data(*pin);
}

/* Keys of the node that are at most this. */
static uint32_t upto(const struct node *node, uint64_t key)
{
    uint32_t low = 0, high = node->keys;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (node->key[middle] <= key) low = middle + 1;
        else high = middle;
    }
    return low;
}

static int look_up(struct tree *tree, uint64_t key, uint64_t *value)
{
    uint64_t page = tree->root;
    for (;;) {
        pk_pin *held;
        const struct node *node = pin(tree, page, PK_PIN_SHARED, &held);
        uint32_t at = upto(node, key);
        int is_leaf = (int)node->is_leaf, found = is_leaf && at && node->key[at - 1] == key;
        page = node->link[at];
        if (found) *value = node->link[at - 1];
        must(pk_unpin(held));
        if (is_leaf) return found;
    }
}

static void open_gap(struct node *node, uint32_t at)
{
    memmove(&node->key[at + 1], &node->key[at], (node->keys - at) * sizeof node->key[0]);
    memmove(&node->link[at + 1], &node->link[at], (node->keys + 1 - at) * sizeof node->link[0]);
    node->keys++;
}

/* Splits a full node; returns the right half's page and puts the key that parts them. */
static uint64_t split(struct tree *tree, struct node *left, uint64_t *parting)
{
    pk_pin *held;
    uint64_t page = tree->used++;
    struct node *right = pin(tree, page, PK_PIN_EXCLUSIVE, &held);
    uint32_t half = left->keys / 2, from = left->is_leaf ? half : half + 1;
    *parting = left->key[half];
    right->is_leaf = left->is_leaf;
    right->keys = left->keys - from;
    memcpy(right->key, left->key + from, right->keys * sizeof right->key[0]);
    memcpy(right->link, left->link + from, (right->keys + 1) * sizeof right->link[0]);
    left->keys = half;
    must(pk_unpin(held));
    return page;
}

/* Full nodes are split on the way down, so that there is room above. */
static void insert(struct tree *tree, uint64_t key, uint64_t value)
{
    pk_pin *held, *above = NULL;
    struct node *parent = NULL, *node = pin(tree, tree->root, PK_PIN_EXCLUSIVE, &held);
    uint32_t place = 0;
    for (;;) {
        if (node->keys == KEYS_MAX) {
            if (!parent) {
                uint64_t old = tree->root;
                tree->root = tree->used++;
                parent = pin(tree, tree->root, PK_PIN_EXCLUSIVE, &above);
                memset(parent, 0, sizeof *parent);
                parent->link[0] = old;
            }
            uint64_t parting, right = split(tree, node, &parting);
            open_gap(parent, place);
            /* The gap is before the left half; the right half takes its second place. */
            parent->key[place] = parting;
            parent->link[place + 1] = right;
            if (key >= parting) {
                must(pk_unpin(held));
                node = pin(tree, right, PK_PIN_EXCLUSIVE, &held);
            }
        }
        if (above) must(pk_unpin(above));
        place = upto(node, key);
        if (node->is_leaf) break;
        above = held;
        parent = node;
        node = pin(tree, parent->link[place], PK_PIN_EXCLUSIVE, &held);
    }
    open_gap(node, place);
    node->key[place] = key;
    node->link[place] = value;
    must(pk_unpin(held));
}

/* The i-th key: runs of 64 neighbours, in a shuffled order of runs (an odd factor takes the numbers
 * below 2^20 to one another). */
static uint64_t key_of(uint64_t i)
{
    return i / 64 * 0x9e3779b1u % (1u << 20) * 64 + i % 64;
}

int main(int argc, char **argv)
{
    const uint64_t keys = argc > 1 ? strtoull(argv[1], NULL, 10) : 1u << 20;
    const uint64_t pages = keys / 64 + 16; /* enough for nodes that are half full */
    pk_cache_options options = {
        .struct_bytes = sizeof options, .budget_bytes = 3 * keys, .read_ahead_pages_max = 1};
    pk_cache *cache;
    struct tree tree = {.used = 1};
    pk_pin *held;
    must(pk_cache_create(&options, &cache));
    must(pk_segment_scratch(cache, pages * PK_PAGE_BYTES, &tree.pages));
    pin(&tree, tree.root, PK_PIN_EXCLUSIVE, &held)->is_leaf = 1;
    must(pk_unpin(held));

    for (uint64_t i = 0; i < keys; i++) insert(&tree, key_of(i), ~key_of(i));
    for (uint64_t i = 0; i < keys; i++) {
        uint64_t key = key_of(i), value = 0;
        if (!look_up(&tree, key, &value) || value != ~key) return fputs("a key is lost\n", stderr);
        if (look_up(&tree, key + (1u << 26), &value)) return fputs("a key too many\n", stderr);
    }
    pk_stats stats = {.struct_bytes = sizeof stats};
    must(pk_cache_stats(cache, &stats));
    printf("%llu keys in %llu KiB of nodes, with %llu KiB of memory: %llu pages read, %llu written\n",
           (unsigned long long)keys, (unsigned long long)(tree.used * PK_PAGE_BYTES >> 10),
           (unsigned long long)(stats.budget_bytes >> 10), (unsigned long long)stats.major_faults,
           (unsigned long long)stats.write_backs);
    must(pk_segment_close(tree.pages));
    must(pk_cache_close(cache));
    return 0;
}
