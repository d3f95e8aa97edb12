// What the peers' programs share: pages of a file are touched as a list says, from several threads,
// checked, and one line of JSON tells the elapsed time and a checksum, as `pagekeeper-library-workload`
// does it.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

namespace touch {

struct Job {
   const char* file;
   std::vector<uint32_t> pages;
   uint64_t threads;
   uint64_t memory_bytes;
};

[[noreturn]] inline void fail(const char* what) {
   perror(what);
   exit(1);
}

// FILE SEQUENCE THREADS MEMORY
inline Job job(int argc, char** argv) {
   if (argc != 5) {
      fprintf(stderr, "usage: %s FILE SEQUENCE THREADS MEMORY_BYTES\n", argv[0]);
      exit(2);
   }
   std::ifstream in(argv[2], std::ios::binary | std::ios::ate);
   if (!in)
      fail(argv[2]);
   std::vector<uint32_t> pages(static_cast<size_t>(in.tellg()) / sizeof(uint32_t));
   in.seekg(0);
   in.read(reinterpret_cast<char*>(pages.data()), static_cast<std::streamsize>(pages.size() * sizeof(uint32_t)));
   return {argv[1], std::move(pages), strtoull(argv[3], nullptr, 10), strtoull(argv[4], nullptr, 10)};
}

// The first word of a page of a test file (`pattern.rs`).
inline uint64_t first_word(uint64_t page) {
   uint64_t z = page ^ 0x70616765;
   z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
   z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
   return (z ^ (z >> 31)) & ~0xffull;
}

// `word(thread, page)` gives the first word of a page. Each thread has a stretch of the list.
template <class Word>
void run(const Job& job, Word word) {
   std::vector<uint64_t> sums(job.threads);
   auto start = std::chrono::steady_clock::now();
   std::vector<std::thread> threads;
   for (uint64_t thread = 0; thread < job.threads; thread++) {
      threads.emplace_back([&, thread] {
         size_t share = job.pages.size() / job.threads;
         uint64_t sum = 0;
         for (size_t i = thread * share; i < (thread + 1) * share; i++) {
            uint64_t found = word(thread, job.pages[i]);
            if (found != first_word(job.pages[i])) {
               fprintf(stderr, "page %u holds %llx\n", job.pages[i], static_cast<unsigned long long>(found));
               exit(1);
            }
            sum += found;
         }
         sums[thread] = sum;
      });
   }
   uint64_t checksum = 0;
   for (uint64_t thread = 0; thread < job.threads; thread++) {
      threads[thread].join();
      checksum += sums[thread];
   }
   auto elapsed = std::chrono::steady_clock::now() - start;
   printf("{\"elapsed_ns\": %lld, \"checksum\": \"%016llx\", \"touches\": %zu}\n",
          static_cast<long long>(std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count()),
          static_cast<unsigned long long>(checksum), job.pages.size());
   fflush(stdout);
}

}  // namespace touch
