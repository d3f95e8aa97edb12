#!/usr/bin/env bash
# Programs that map their indexes: builds one, asks it, and prints what was found.
#
#   scripts/indexes.sh blast|bowtie2|rocksdb|slapd PLACE [COMMAND...]
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
