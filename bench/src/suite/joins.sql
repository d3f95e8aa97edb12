PRAGMA mmap_size = 1073741824; PRAGMA cache_size = 16; PRAGMA automatic_index = off;
-- Joins without an index: the larger relation is read once for each tuple of the smaller one.
SELECT count(*), sum(b.unique1) FROM twothoustup a CROSS JOIN twentythoustup b
WHERE a.unique1 <= 24 AND b.unique2 % 2003 = a.unique2;
SELECT count(*), sum(b.unique1) FROM twothoustup a CROSS JOIN hundredthoustup b
WHERE a.unique1 <= 16 AND b.unique2 % 2003 = a.unique2;
SELECT count(*), sum(b.unique1) FROM twothoustup a CROSS JOIN twohundredthoustup b
WHERE a.unique1 <= 12 AND b.unique2 % 2003 = a.unique2;
