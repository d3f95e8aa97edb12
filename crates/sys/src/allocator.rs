//! libc's allocator (`mallopt(3)`).
#![allow(unsafe_code)]

/// From so many bytes on a block has pages of its own.
const LARGE_BYTES: libc::c_int = 64 << 10;

/// What is freed of large blocks goes back to the kernel at once, and a large block that grows is not
/// copied, from now on and in all of this process.
///
/// By default this holds from 128 KiB on, and for no block as long as the longest that was ever freed: a
/// program whose arrays come, grow and go keeps several times their length. (Where there is room between
/// others, a block is there all the same.)
///
/// False where libc has no such setting (musl, whose allocator does so by itself).
pub fn give_back_large_blocks() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes two numbers and locks what it changes; `LARGE_BYTES` is below the most
        // that it takes (HEAP_MAX_SIZE / 2, 32 MiB).
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES) == 1 }
    }
    #[cfg(not(target_env = "gnu"))]
    {
        false
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;
    use crate::in_child::in_child;

    /// Shadow caches of a selector come and go: the manager had 26 MB, of which 12 were freed ones.
    #[test]
    fn large_blocks_have_pages_of_their_own() {
        // Whether a block has, once a longer one was freed, and whether they are gone with it.
        let block = || {
            // SAFETY: it only reads what the allocator counts.
            let all = || unsafe { libc::mallinfo2() }.hblks;
            drop(std::hint::black_box(vec![1_u8; 16 << 20]));
            let before = all();
            let block = std::hint::black_box(vec![1_u8; 1 << 20]);
            let has_own = all() == before + 1;
            drop(block);
            i32::from(has_own) + 2 * i32::from(all() == before)
        };
        assert_eq!(in_child(block), 2);
        assert_eq!(in_child(|| if give_back_large_blocks() { block() } else { -1 }), 3);
    }
}
