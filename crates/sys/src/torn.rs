//! Copies of memory that others may be changing meanwhile.
//!
//! Such a copy may be torn: some bytes as they were, some as they became. It is worth something to
//! whoever finds out afterwards that nothing had changed, as readers under a sequence lock do
//! (`include/linux/seqlock.h` in the kernel's sources). Rust has no such copy yet (RFC 3301), so the
//! loads are instructions that the compiler knows nothing of.
#![allow(unsafe_code)]

/// Whether [`copy`] moves more than a byte at a time on this processor.
pub const IS_FAST: bool = cfg!(target_arch = "x86_64");

/// Copies `buf.len()` bytes from an address, whoever writes there meanwhile. Between an acquiring load
/// and an acquiring fence it stays there.
///
/// # Safety
/// The bytes lie in memory that can be read until this returns. (No reference is made to them, so
/// somebody else may have an exclusive one.)
#[inline(always)]
pub unsafe fn copy(buf: &mut [u8], from: *const u8) {
    // SAFETY: as our caller promises.
    unsafe { imp::copy(buf, from) }
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use core::arch::asm;
    use core::arch::x86_64::__m128i;

    /// A load of so many bytes at any address. For all that the compiler knows it reads and writes any
    /// memory, so nothing is moved past it; the processor makes loads in their order.
    macro_rules! load {
        ($name:ident, $type:ty, $class:ident, $instruction:literal) => {
            #[inline(always)]
            unsafe fn $name(from: *const u8) -> $type {
                let value;
                // SAFETY: reads memory that the caller may read, and changes nothing else.
                unsafe {
                    asm!(
                        $instruction,
                        from = in(reg) from,
                        value = out($class) value,
                        options(nostack, preserves_flags)
                    );
                }
                value
            }
        };
    }

    load!(load_16, __m128i, xmm_reg, "movups {value}, xmmword ptr [{from}]");
    load!(load_8, u64, reg, "mov {value}, qword ptr [{from}]");
    load!(load_4, u32, reg, "mov {value:e}, dword ptr [{from}]");
    load!(load_1, u32, reg, "movzx {value:e}, byte ptr [{from}]");

    #[inline(always)]
    pub(super) unsafe fn copy(buf: &mut [u8], from: *const u8) {
        let (to, len) = (buf.as_mut_ptr(), buf.len());
        // SAFETY: all loads are of the caller's bytes and all stores to the buffer: at 0, at
        // multiples of the size that lie at least so far before the end, and so far before the end,
        // where there are as many bytes as one of them takes.
        unsafe {
            macro_rules! both_ends {
                ($load:ident, $type:ty) => {{
                    let last = len - size_of::<$type>();
                    let (head, tail) = ($load(from), $load(from.add(last)));
                    to.cast::<$type>().write_unaligned(head);
                    to.add(last).cast::<$type>().write_unaligned(tail);
                }};
            }
            match len {
                0 => {}
                1..4 => {
                    for at in 0..len {
                        to.add(at).write(load_1(from.add(at)) as u8);
                    }
                }
                4..8 => both_ends!(load_4, u32),
                8..16 => both_ends!(load_8, u64),
                _ => {
                    let mut at = 0;
                    while at + 64 <= len {
                        let lines = [0, 16, 32, 48].map(|line| load_16(from.add(at + line)));
                        for (no, line) in lines.into_iter().enumerate() {
                            to.add(at + 16 * no).cast::<__m128i>().write_unaligned(line);
                        }
                        at += 64;
                    }
                    while at + 16 <= len {
                        to.add(at).cast::<__m128i>().write_unaligned(load_16(from.add(at)));
                        at += 16;
                    }
                    let last = len - 16;
                    to.add(last).cast::<__m128i>().write_unaligned(load_16(from.add(last)));
                }
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    pub(super) unsafe fn copy(buf: &mut [u8], from: *const u8) {
        for (at, byte) in buf.iter_mut().enumerate() {
            // SAFETY: one of the bytes that the caller may read.
            *byte = unsafe { from.add(at).read_volatile() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

    #[test]
    fn every_length_at_every_alignment_is_copied_whole_and_nothing_else() {
        let from: Vec<u8> = (0..700u32).map(|i| (i * 7 % 251) as u8).collect();
        for len in (0..300).chain([511, 512, 513, 600]) {
            for at in 0..17 {
                let mut to = vec![0xee; len + 32];
                // SAFETY: the bytes are there, and nobody changes them.
                unsafe { copy(&mut to[16..16 + len], from[at..].as_ptr()) };
                assert_eq!(to[16..16 + len], from[at..at + len], "{len} bytes at {at}");
                assert!(to[..16].iter().chain(&to[16 + len..]).all(|byte| *byte == 0xee));
            }
        }
    }

    /// A sequence lock over a page: what passes its check was never torn.
    #[test]
    fn what_did_not_change_was_copied_whole() {
        let memory: Vec<AtomicU64> = (0..128).map(|_| AtomicU64::new(0)).collect();
        let (sequence, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..20_000 {
                    sequence.fetch_add(1, Ordering::AcqRel);
                    memory.iter().for_each(|word| word.store(round, Ordering::Relaxed));
                    sequence.fetch_add(1, Ordering::AcqRel);
                }
                is_over.store(true, Ordering::Release);
            });
            let mut bytes = [0; 1024];
            let mut whole = 0;
            while !is_over.load(Ordering::Acquire) || whole == 0 {
                let before = sequence.load(Ordering::Acquire);
                // SAFETY: the words are there; they are changed by atomic stores.
                unsafe { copy(&mut bytes, memory.as_ptr().cast()) };
                fence(Ordering::Acquire);
                if before.is_multiple_of(2) && sequence.load(Ordering::Relaxed) == before {
                    let words = bytes.as_chunks::<8>().0;
                    assert!(words.iter().all(|word| *word == words[0]), "torn: {words:?}");
                    whole += 1;
                }
            }
        });
    }
}
