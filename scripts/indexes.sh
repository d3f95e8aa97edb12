#!/usr/bin/env bash
# Programs that map their indexes: builds one, asks it, and prints what was found.
#
#   scripts/indexes.sh blast|bowtie2|git|rocksdb|samtools|slapd PLACE [COMMAND...]
#
# COMMAND is what stands before each program: nothing, or `pagekeeper run ... --`. PLACE is emptied.
# slapd is killed (-9) in the midst of its load and started again.
set -uo pipefail
export LC_ALL=C
which="$1" place="$2"
shift 2
before=("$@")
rm -rf "$place" && mkdir -p "$place" && cd "$place" || exit 1

run() { "${before[@]}" "$@" 2>>log; }

# A genome of 8 chromosomes and two million letters, and pieces of it with mistakes.
genome() {
    awk 'BEGIN {
        srand(5)
        for (c = 1; c <= 8; c++) {
            print ">chr" c > "genome.fa"
            for (line = 0; line < 3200; line++) {
                s = ""
                for (i = 0; i < 80; i++) s = s substr("ACGT", 1 + int(4 * rand()), 1)
                print s > "genome.fa"
                if (line % 30 == 7)
                    printf ">r%d.%d\n%sA%s\n", c, line, substr(s, 1, 30), substr(s, 32) > "reads.fa"
            }
        }
    }'
}

of_blast() {
    genome
    run makeblastdb -in genome.fa -dbtype nucl -parse_seqids -out db >/dev/null || echo failed
    run blastn -db db -query reads.fa -outfmt 6 -num_threads 2 -evalue 1e-9 | sort | md5sum
    run blastdbcmd -db db -entry chr3,chr7 | md5sum
}

of_bowtie2() {
    genome
    run bowtie2-build --threads 2 -q genome.fa index || echo failed
    run bowtie2 --mm -p 2 --reorder --no-head -x index -f reads.fa | md5sum
    run bowtie2-inspect index | md5sum
}

of_rocksdb() {
    local database how
    for database in read write; do
        how="--db=$database --num=40000 --value_size=150 --seed=7 --write_buffer_size=1000000
            --target_file_size_base=1000000 --compression_type=none --mmap_$database=1"
        # shellcheck disable=SC2086
        run db_bench $how --benchmarks=fillrandom,overwrite,compact >/dev/null || echo failed
        # shellcheck disable=SC2086
        run db_bench $how --mmap_read=1 --use_existing_db=1 --threads=2 \
            --benchmarks=readrandom,readseq | grep -o '[0-9]* of [0-9]* found'
        run ldb --db="$database" checkconsistency
        run ldb --db="$database" scan | md5sum
    done
}

# Reads at places in no order; sorted, so that parts of it are merged from files.
of_samtools() {
    genome
    awk 'BEGIN { srand(6) }
        /^>/ { name = substr($1, 2); at = 0; print "@SQ\tSN:" name "\tLN:256000" > "header.sam"; next }
        { for (n = 0; n < 4; n++)
              printf "%07d\tr%d\t0\t%s\t%d\t60\t80M\t*\t0\t0\t%s\t*\n",
                  10000000 * rand(), NR * 4 + n, name, at + 1, $1
          at += 80 }' genome.fa | sort | cut -f 2- >body.sam
    cat header.sam body.sam >reads.sam
    run samtools view --no-PG -b -o reads.bam reads.sam || echo failed
    run samtools sort --no-PG -m 2M -@ 2 -T part -o sorted.bam reads.bam || echo failed
    run samtools index sorted.bam && run samtools faidx genome.fa || echo failed
    run samtools view sorted.bam chr2:1000-90000 chr7:200000-250000 | md5sum
    run samtools mpileup -f genome.fa sorted.bam | md5sum
    run samtools view --no-PG -C -T genome.fa -o sorted.cram sorted.bam || echo failed
    run samtools view -T genome.fa sorted.cram | md5sum
    md5sum sorted.bam sorted.bam.bai
}

# Packs that are looked at through small windows.
of_git() {
    local n who
    for who in AUTHOR COMMITTER; do
        export "GIT_${who}_NAME=x" "GIT_${who}_EMAIL=x" "GIT_${who}_DATE=1600000000 +0000"
    done
    export HOME="$PWD" GIT_CONFIG_NOSYSTEM=1
    git init -q r && cd r || exit 1
    echo log >.git/info/exclude
    git config core.packedGitWindowSize 32k && git config core.packedGitLimit 256k
    git config core.bigFileThreshold 200k && git config pack.threads 1 && git config gc.auto 0
    awk 'BEGIN { srand(5)
        for (n = 0; n < 1500; n++) {
            for (line = 0; line < 20 + n % 40; line++) printf "%d %s\n", n, rand() > "f" n
            close("f" n)
        }
        for (line = 0; line < 200000; line++) print rand() > "big" }'
    run git add -A && run git commit -qm first || echo failed
    for n in $(seq 0 7 1499); do echo more >>"f$n"; done
    echo more >>big
    run git commit -qam second && run git gc -q --aggressive --prune=now || echo failed
    run git fsck --full --strict && run git verify-pack -v .git/objects/pack/*.idx | md5sum
    run git clone -q --no-local . ../copy && git -C ../copy log --stat | md5sum
    run git archive HEAD~1 | md5sum
    run git repack -adfq --depth=10 && run git cat-file --batch-all-objects --batch-check | md5sum
    git rev-parse HEAD
    run git status --short
}

of_slapd() {
    local n flags pid entries=/etc/ldap/schema ask=(ldapsearch -x -LLL -o ldif-wrap=no -H
        "ldapi://%2e%2fsocket" -b dc=x)
    entry() { printf 'dn: cn=%s,dc=x\nobjectClass: device\ncn: %s\ndescription: %0200d\n\n' "$1" "$1" 7; }
    serve() {
        "${before[@]}" slapd -d 0 -f config -h "ldapi://%2e%2fsocket" >>log 2>&1 &
        for _ in $(seq 100); do
            sleep 0.1
            "${ask[@]}" -s base dn >/dev/null 2>&1 && return
        done
        echo "slapd does not start"
    }
    for flags in "" "envflags writemap nometasync"; do
        rm -rf database acknowledged && mkdir database
        printf '%s\n' "include $entries/core.schema" "include $entries/cosine.schema" \
            "modulepath /usr/lib/ldap" "moduleload back_mdb" "pidfile $PWD/pid" "database mdb" \
            "suffix dc=x" "rootdn cn=root,dc=x" "rootpw x" "directory database" \
            "maxsize 100000000" "sizelimit unlimited" "index cn eq" "$flags" >config
        {
            printf 'dn: dc=x\nobjectClass: dcObject\nobjectClass: organization\no: x\ndc: x\n\n'
            for n in $(seq 5000); do entry "$n"; done
        } >entries
        run slapadd -q -f config -l entries || echo failed
        serve
        for n in $(seq 100000); do
            for _ in $(seq 20); do entry "new$n.$_"; done |
                ldapadd -x -H "ldapi://%2e%2fsocket" -D cn=root,dc=x -w x >/dev/null 2>&1 || break
            echo "$n" >acknowledged
        done &
        sleep 3
        pid="$(cat pid)" && kill -9 "$pid"
        wait
        serve
        n="$(cat acknowledged)"
        [ "$n" -gt 3 ] && [ "$("${ask[@]}" dn | grep -c "cn=new")" -ge $((20 * n)) ] &&
            echo "all that was acknowledged is there"
        "${ask[@]}" "(cn=4321)" | md5sum
        "${ask[@]}" '(!(cn=new*))' dn | sort | md5sum
        kill "$(cat pid)"
        wait
        run slapcat -f config | grep -c 'dn: cn=[0-9]*,'
    done
}

"of_$which"
