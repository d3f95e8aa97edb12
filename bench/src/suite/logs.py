import os, random, sys

random.seed(7)
os.mkdir(sys.argv[1])
words = ["".join(random.choices("abcdefgh", k=6)) for _ in range(500)]
for part in range(12):
    with open(os.path.join(sys.argv[1], f"{part:02}.log"), "w") as out:
        for line in range(150_000):
            text = " ".join(random.choices(words, k=6))
            out.write(f"{line} {text}{' needle %d' % line if line % 997 == 0 else ''}\n")
