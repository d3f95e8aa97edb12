// vmcache (Leis et al., SIGMOD 2023) over a test file: its own source with another `main`.
//
// It keeps its dirty flag in the first byte of each page, which is zero in test files.
#include <cstdlib>
#include <string>

// Its buffer manager is a global that asks the environment, in whole gigabytes of memory.
__attribute__((constructor(101))) static void early(int argc, char** argv, char**) {
   if (argc == 5) {
      setenv("BLOCK", argv[1], 1);
      setenv("VIRTGB", "8", 1);
      setenv("PHYSGB", "1", 1);
   }
}

#define main vmcache_main
#include "vmcache.cpp"
#undef main
#include "touch.hpp"
#include <new>

int main(int argc, char** argv) {
   touch::Job job = touch::job(argc, argv);
   // Other sizes than a gigabyte: the set of resident pages is made anew while it is empty.
   bm.physSize = job.memory_bytes;
   bm.physCount = job.memory_bytes / pageSize;
   bm.residentSet.~ResidentPageSet();
   new (&bm.residentSet) ResidentPageSet(bm.physCount);
   touch::run(job, [](uint64_t thread, uint64_t page) {
      workerThreadId = static_cast<uint16_t>(thread);
      uint64_t word;
      memcpy(&word, bm.fixS(page), sizeof word);
      bm.unfixS(page);
      return word;
   });
   _exit(0);
}
