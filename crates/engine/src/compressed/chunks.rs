//! Memory for many byte strings of different lengths that come and go: in chunks, which need not lie
//! together.
//!
//! An allocator gives each string one piece, and is left with holes when others of another length
//! take its place: compressed pages took twice their bytes. In chunks no hole is too small, and what
//! is lost is the half of the last one. Chunks lie in segments; the lowest with room takes the next
//! string, so that others run empty and are given back.

use pagekeeper_sys::Errno;
use pagekeeper_sys::buffer::Buffer;
use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 128;
/// Chunks of a segment.
const SEGMENT_CHUNKS: u32 = 256;
/// Behind the last.
const NONE: u32 = u32::MAX;
/// What a chunk costs: its bytes, and who follows it.
const COST_BYTES: u64 = CHUNK_BYTES as u64 + size_of::<u32>() as u64;

/// A byte string, until it is [removed](Chunks::remove). Not a `Copy`: it is removed once.
#[derive(Debug)]
pub(crate) struct Stored {
    first: u32,
    len: u32,
}

impl Stored {
    /// Memory that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        cost_bytes(self.len as usize)
    }
}

/// Memory that a string of so many bytes takes.
pub(crate) fn cost_bytes(len: usize) -> u64 {
    len.div_ceil(CHUNK_BYTES) as u64 * COST_BYTES
}

struct Segment {
    memory: Buffer,
    /// Which chunk of any segment follows each; of free ones, the next free one of this segment.
    next: Box<[u32]>,
    free: u32,
    free_chunks: u32,
}

impl Segment {
    fn new(number: usize) -> Result<Segment, Errno> {
        let first = number as u32 * SEGMENT_CHUNKS;
        let behind = first + SEGMENT_CHUNKS;
        let next = (first + 1..behind).chain([NONE]).collect();
        let memory = Buffer::new(SEGMENT_CHUNKS as usize * CHUNK_BYTES)?;
        Ok(Segment { memory, next, free: first, free_chunks: SEGMENT_CHUNKS })
    }
}

/// Byte strings in chunks.
#[derive(Default)]
pub(crate) struct Chunks {
    segments: Vec<Option<Segment>>,
    with_room: BTreeSet<u32>,
    /// Numbers of segments that were given back.
    vacant: BTreeSet<u32>,
    used: u64,
}

impl std::fmt::Debug for Chunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} chunks in {} segments", self.used, self.segments.len() - self.vacant.len())
    }
}

fn split(chunk: u32) -> (usize, usize) {
    ((chunk / SEGMENT_CHUNKS) as usize, (chunk % SEGMENT_CHUNKS) as usize)
}

fn bytes_of(within: usize, len: usize) -> Range<usize> {
    within * CHUNK_BYTES..within * CHUNK_BYTES + len.min(CHUNK_BYTES)
}

impl Chunks {
    /// Memory that segments take, whether they are full or not.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let segments = self.segments.len() - self.vacant.len();
        segments as u64 * u64::from(SEGMENT_CHUNKS) * COST_BYTES
    }

    fn segment(&mut self, number: usize) -> &mut Segment {
        self.segments[number].as_mut().expect("chunks in use have a segment")
    }

    /// The lowest segment that has a free chunk.
    fn room(&mut self) -> Result<usize, Errno> {
        if let Some(lowest) = self.with_room.first() {
            return Ok(*lowest as usize);
        }
        let number = self.vacant.first().map_or(self.segments.len(), |number| *number as usize);
        let segment = Segment::new(number)?;
        match self.segments.get_mut(number) {
            Some(gone) => {
                *gone = Some(segment);
                self.vacant.pop_first();
            }
            None => self.segments.push(Some(segment)),
        }
        self.with_room.insert(number as u32);
        Ok(number)
    }

    /// Stores a copy of these bytes.
    ///
    /// # Errors
    /// ENOMEM; nothing is stored.
    pub(crate) fn insert(&mut self, bytes: &[u8]) -> Result<Stored, Errno> {
        let mut stored = Stored { first: NONE, len: bytes.len() as u32 };
        // From the end: who follows a chunk is known when it is taken.
        for piece in bytes.chunks(CHUNK_BYTES).rev() {
            let number = match self.room() {
                Ok(number) => number,
                Err(errno) => {
                    self.remove(stored);
                    return Err(errno);
                }
            };
            let segment = self.segment(number);
            let chunk = segment.free;
            let within = split(chunk).1;
            segment.free = std::mem::replace(&mut segment.next[within], stored.first);
            segment.free_chunks -= 1;
            segment.memory[bytes_of(within, piece.len())].copy_from_slice(piece);
            if segment.free_chunks == 0 {
                self.with_room.remove(&(number as u32));
            }
            self.used += 1;
            stored.first = chunk;
        }
        Ok(stored)
    }

    /// A copy of a string.
    pub(crate) fn copy_of(&self, stored: &Stored) -> Vec<u8> {
        let mut left = stored.len as usize;
        let mut out = Vec::with_capacity(left);
        let mut chunk = stored.first;
        while left > 0 {
            let (number, within) = split(chunk);
            let segment = self.segments[number].as_ref().expect("chunks in use have a segment");
            let piece = bytes_of(within, left);
            left -= piece.len();
            out.extend_from_slice(&segment.memory[piece]);
            chunk = segment.next[within];
        }
        out
    }

    /// Gives the memory of a string back.
    pub(crate) fn remove(&mut self, stored: Stored) {
        let mut chunk = stored.first;
        while chunk != NONE {
            let (number, within) = split(chunk);
            let segment = self.segment(number);
            let next = std::mem::replace(&mut segment.next[within], segment.free);
            segment.free = chunk;
            segment.free_chunks += 1;
            if segment.free_chunks == SEGMENT_CHUNKS {
                self.segments[number] = None;
                self.with_room.remove(&(number as u32));
                self.vacant.insert(number as u32);
            } else {
                self.with_room.insert(number as u32);
            }
            self.used -= 1;
            chunk = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn string(seed: u8, len: usize) -> Vec<u8> {
        (0..len).map(|i| seed.wrapping_mul(31).wrapping_add(i as u8)).collect()
    }

    proptest! {
        /// Against a list of the strings; memory is what they need, in segments.
        #[test]
        fn strings_stay_what_they_were(
            steps in prop::collection::vec((any::<u8>(), 0..4097usize, any::<bool>()), 1..600)
        ) {
            let mut chunks = Chunks::default();
            let mut model: Vec<(Stored, Vec<u8>)> = Vec::new();
            let mut most = 0;
            for (seed, len, removes) in steps {
                if removes && !model.is_empty() {
                    let (stored, _) = model.swap_remove(seed as usize % model.len());
                    chunks.remove(stored);
                } else {
                    let bytes = string(seed, len);
                    model.push((chunks.insert(&bytes).unwrap(), bytes));
                }
                let cost: u64 = model.iter().map(|(stored, _)| stored.bytes()).sum();
                prop_assert_eq!(chunks.used * COST_BYTES, cost);
                most = cost.max(most);
                // The lowest take what comes: never more than what once was needed.
                let segment = u64::from(SEGMENT_CHUNKS) * COST_BYTES;
                prop_assert!(chunks.memory_bytes() <= most.next_multiple_of(segment));
            }
            for (stored, bytes) in &model {
                prop_assert_eq!(&chunks.copy_of(stored), bytes);
            }
            for (stored, _) in model {
                chunks.remove(stored);
            }
            prop_assert_eq!(chunks.memory_bytes(), 0);
        }
    }
}
