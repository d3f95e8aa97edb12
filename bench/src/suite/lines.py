import random, sys

random.seed(11)
with open(sys.argv[1], "w") as out:
    for line in range(700_000):
        out.write(f"{line} {random.getrandbits(64):016x} {'x' * 40}\n")
