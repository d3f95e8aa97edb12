// UMap (Peng et al., MCHPC 2019) over a test file.
#include "touch.hpp"
#include "umap/umap.h"
#include <fcntl.h>
#include <string>
#include <sys/stat.h>

int main(int argc, char** argv) {
   touch::Job job = touch::job(argc, argv);
   setenv("UMAP_PAGESIZE", "4096", 1);
   setenv("UMAP_BUFSIZE", std::to_string(job.memory_bytes / 4096).c_str(), 1);
   int fd = open(job.file, O_RDONLY | O_DIRECT);
   struct stat status;
   if (fd < 0 || fstat(fd, &status) != 0)
      touch::fail(job.file);
   char* base = static_cast<char*>(umap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, fd, 0));
   if (base == MAP_FAILED)
      touch::fail("umap");
   touch::run(job, [base](uint64_t, uint64_t page) {
      uint64_t word;
      memcpy(&word, base + page * 4096, sizeof word);
      return word;
   });
   _exit(0);
}
