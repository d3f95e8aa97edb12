PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA page_size = 4096;
-- Four relations, as of the Wisconsin benchmark: 0.15, 1.6, 7.9 and 15.7 MB.
CREATE TABLE twothoustup(unique1 INTEGER PRIMARY KEY, unique2 INTEGER, filler TEXT);
CREATE TABLE twentythoustup(unique1 INTEGER PRIMARY KEY, unique2 INTEGER, filler TEXT);
CREATE TABLE hundredthoustup(unique1 INTEGER PRIMARY KEY, unique2 INTEGER, filler TEXT);
CREATE TABLE twohundredthoustup(unique1 INTEGER PRIMARY KEY, unique2 INTEGER, filler TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)
INSERT INTO twohundredthoustup SELECT i, i * 7919 % 200003, hex(zeroblob(32)) FROM n;
INSERT INTO hundredthoustup
SELECT unique1, unique2 % 100003, filler FROM twohundredthoustup WHERE unique1 <= 100000;
INSERT INTO twentythoustup
SELECT unique1, unique2 % 20011, filler FROM twohundredthoustup WHERE unique1 <= 20000;
INSERT INTO twothoustup
SELECT unique1, unique2 % 2003, filler FROM twohundredthoustup WHERE unique1 <= 2000;
