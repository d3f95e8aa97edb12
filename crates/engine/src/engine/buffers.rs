//! Memory for transfers that is kept for the next ones, since new memory costs a fault a page.

use crate::engine::{Buffer, Engine};
use crate::port::{Port, PortError};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Short buffers that are kept,
const SHORT_KEPT: usize = 3;
/// and of the others at least one for each window that is under way.
const LONG_KEPT: usize = 2;
/// Size of the short ones.
const SHORT_BYTES: usize = 16 << 10;

/// Buffers that nobody uses.
#[derive(Debug)]
pub(crate) struct Buffers {
    kept: Mutex<Vec<Buffer>>,
    /// Bytes of long ones up to which more are kept: what the budget sets aside.
    long_bytes_max: AtomicU64,
}

fn is_short(buffer: &Buffer) -> bool {
    buffer.len() <= SHORT_BYTES
}

impl Buffers {
    pub(crate) fn new(long_bytes_max: u64) -> Buffers {
        Buffers { kept: Mutex::default(), long_bytes_max: AtomicU64::new(long_bytes_max) }
    }

    /// The budget sets aside so much from now on.
    pub(crate) fn set_long_bytes_max(&self, bytes: u64) {
        self.long_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// The smallest that has room for so many bytes.
    fn take(&self, bytes: usize) -> Option<Buffer> {
        let mut kept = self.kept.lock().expect("buffers");
        let short = bytes <= SHORT_BYTES;
        let fits = |(_, b): &(usize, &Buffer)| b.len() >= bytes && is_short(b) == short;
        let fitting = kept.iter().enumerate().filter(fits);
        let at = fitting.min_by_key(|(_, buffer)| buffer.len())?.0;
        Some(kept.swap_remove(at))
    }

    fn give(&self, buffer: Buffer) {
        let mut kept = self.kept.lock().expect("buffers");
        let alike = kept.iter().filter(|b| is_short(b) == is_short(&buffer));
        let (count, bytes) = alike.fold((0, buffer.len() as u64), |(count, bytes), b| {
            (count + 1, bytes + b.len() as u64)
        });
        let is_kept = match is_short(&buffer) {
            true => count < SHORT_KEPT,
            false => count < LONG_KEPT || bytes <= self.long_bytes_max.load(Ordering::Relaxed),
        };
        if is_kept {
            kept.push(buffer);
        } else if let Some(at) = kept.iter().position(|b| !is_short(b) && b.len() < buffer.len()) {
            kept[at] = buffer;
        }
    }
}

impl<P: Port> Engine<P> {
    /// Memory for a transfer.
    pub(crate) fn take_buffer(&self, bytes: usize) -> Result<Buffer, PortError> {
        if let Some(buffer) = self.buffers.take(bytes) {
            return Ok(buffer);
        }
        Buffer::new(bytes.max(SHORT_BYTES)).map_err(|e| PortError::Io(e.raw_os_error()))
    }

    pub(crate) fn give_buffer(&self, buffer: Buffer) {
        self.buffers.give(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_kept_as_the_budget_sets_aside() {
        let new = |bytes| Buffer::new(bytes).unwrap();
        let buffers = Buffers::new(1 << 20);
        for _ in 0..2 {
            buffers.give(new(768 << 10));
        }
        // Two in any case, and no more where these are too large already.
        buffers.give(new(128 << 10));
        assert_eq!(buffers.take(1).map(|b| b.len()), None, "a short one is another matter");
        assert_eq!(buffers.take(64 << 10).map(|b| b.len()), Some(768 << 10));
        for _ in 0..4 {
            buffers.give(new(128 << 10));
        }
        let kept: Vec<usize> =
            std::iter::from_fn(|| buffers.take(64 << 10)).map(|b| b.len()).collect();
        assert_eq!(kept, [128 << 10, 128 << 10, 768 << 10]);
        (0..9).for_each(|_| buffers.give(new(SHORT_BYTES)));
        assert_eq!(std::iter::from_fn(|| buffers.take(1)).count(), SHORT_KEPT);
    }
}
