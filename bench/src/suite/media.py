import mmap, sys, zlib

with open(sys.argv[1], "rb") as file:
    data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
total = 0
# Frames of 64 KiB, of which every tenth is skipped; now and then a look back at an index frame.
for frame in range(0, len(data) // 65536):
    if frame % 10 == 9:
        continue
    total = zlib.crc32(data[frame * 65536 : (frame + 1) * 65536], total)
    if frame % 25 == 0:
        total = zlib.crc32(data[:65536], total)
print(total)
