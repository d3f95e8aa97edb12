//! The state of one page, in one atomic word.
//!
//! ```text
//!            claim_fill           filled                claim_clean
//!   Absent ────────────▶ Filling ───────▶ Resident ◀────────────────▶ Cleaning
//!     ▲                     │             │ clean|dirty   cleaned
//!     │        fill_failed  │             │
//!     ├─────────────────────┘             │ claim_leave (idle: no pin)
//!     │              left                 ▼
//!     └────────────────────────────── Leaving ──▶ Resident (dirty; the write-back failed)
//! ```
//!
//! The dirty bit is set before a program may write and cleared only after its write-back
//! succeeded. *Doomed* marks a page that was chosen as a victim while it was busy. Pins are held
//! while a thread maps the page or patches its content; a pinned page neither leaves nor is
//! cleaned. Transitions are made under the engine's lock, pins may be dropped without it. The words
//! live in shared memory, so that the holder process can tell what is dirty when the manager dies.

use std::sync::atomic::{AtomicU32, Ordering};

/// What a page is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not in memory.
    Absent,
    /// Being fetched.
    Filling,
    /// In memory, its content valid.
    Resident,
    /// In memory, being written back.
    Cleaning,
    /// On its way out of memory.
    Leaving,
}

const STATE: u32 = 0b111;
const DIRTY: u32 = 1 << 3;
const DOOMED: u32 = 1 << 4;
const PIN: u32 = 1 << 8;

/// One page's word.
#[repr(transparent)]
pub struct Word(AtomicU32);

impl Word {
    /// An absent page's word.
    pub const fn new() -> Word {
        Word(AtomicU32::new(0))
    }

    /// Views zeroed atomics as words of absent pages.
    pub fn from_atomic(atomic: &AtomicU32) -> WordRef<'_> {
        WordRef(atomic)
    }

    /// The word, for reading and changing.
    pub fn view(&self) -> WordRef<'_> {
        WordRef(&self.0)
    }
}

impl Default for Word {
    fn default() -> Self {
        Self::new()
    }
}

/// A view of a page's word.
#[derive(Clone, Copy)]
pub struct WordRef<'a>(&'a AtomicU32);

impl std::fmt::Debug for WordRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.state())?;
        for (is, what) in [(self.dirty(), "dirty"), (self.doomed(), "doomed")] {
            if is {
                write!(f, ", {what}")?;
            }
        }
        write!(f, ", {} pins", self.pins())
    }
}

impl WordRef<'_> {
    fn load(self) -> u32 {
        // Sequentially consistent with `unpin` and the engine's count of sleepers: either the last
        // unpinner sees the sleeper, or the sleeper sees the page without pins.
        self.0.load(Ordering::SeqCst)
    }

    /// What the page is doing.
    pub fn state(self) -> State {
        match self.load() & STATE {
            0 => State::Absent,
            1 => State::Filling,
            2 => State::Resident,
            3 => State::Cleaning,
            4 => State::Leaving,
            other => panic!("page word holds state {other}"),
        }
    }

    /// Its content differs from what storage holds.
    pub fn dirty(self) -> bool {
        self.load() & DIRTY != 0
    }

    /// It was chosen as a victim while busy, and leaves as soon as it can.
    pub fn doomed(self) -> bool {
        self.load() & DOOMED != 0
    }

    /// Number of pins.
    pub fn pins(self) -> u32 {
        self.load() / PIN
    }

    /// Resident, and nobody is doing anything with it.
    pub fn idle(self) -> bool {
        let word = self.load();
        word & STATE == 2 && word / PIN == 0
    }

    fn step(self, from: &[State], to: u32, clear: u32, set: u32, what: &str) {
        let state = self.state();
        assert!(from.contains(&state), "page word: {what} while {state:?}");
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |w| {
            Some((w & !STATE & !clear) | to | set)
        });
        debug_assert!(before.is_ok());
    }

    /// Absent → Filling.
    pub fn claim_fill(self) {
        assert_eq!(self.load(), 0, "page word: fill of a page that is in use");
        self.step(&[State::Absent], 1, 0, 0, "claim_fill");
    }

    /// Filling → Resident; dirty if the reference that needed it writes.
    pub fn filled(self, dirty: bool) {
        self.step(&[State::Filling], 2, 0, if dirty { DIRTY } else { 0 }, "filled");
    }

    /// Filling → Absent.
    pub fn fill_failed(self) {
        self.step(&[State::Filling], 0, DIRTY | DOOMED, 0, "fill_failed");
    }

    /// Marks a resident page dirty, before write access is given. Also while it is pinned.
    pub fn set_dirty(self) {
        let state = self.state();
        assert!(state == State::Resident, "page word: written while {state:?}");
        self.0.fetch_or(DIRTY, Ordering::AcqRel);
    }

    /// Resident, dirty, idle → Cleaning.
    pub fn claim_clean(self) {
        assert!(self.idle() && self.dirty(), "page word: cleaning a page that is busy or clean");
        self.step(&[State::Resident], 3, 0, 0, "claim_clean");
    }

    /// Cleaning → Resident; clean if its write-back succeeded.
    pub fn cleaned(self, success: bool) {
        self.step(&[State::Cleaning], 2, if success { DIRTY } else { 0 }, 0, "cleaned");
    }

    /// Chosen as a victim while busy.
    pub fn doom(self) {
        let state = self.state();
        assert!(state != State::Absent && state != State::Leaving, "doomed while {state:?}");
        self.0.fetch_or(DOOMED, Ordering::AcqRel);
    }

    /// A doomed page stays after all.
    pub fn spare(self) {
        assert!(self.doomed(), "page word: spared without being doomed");
        self.0.fetch_and(!DOOMED, Ordering::AcqRel);
    }

    /// Resident, idle → Leaving.
    pub fn claim_leave(self) {
        assert!(self.idle(), "page word: eviction of a busy page");
        self.step(&[State::Resident], 4, DOOMED, 0, "claim_leave");
    }

    /// Leaving: its content was written back (the page still has to be taken out).
    pub fn written(self) {
        assert_eq!(self.state(), State::Leaving);
        self.0.fetch_and(!DIRTY, Ordering::AcqRel);
    }

    /// Leaving → Absent. A dirty page cannot: its write-back comes first.
    pub fn left(self) {
        assert!(!self.dirty(), "page word: a dirty page left memory");
        self.step(&[State::Leaving], 0, 0, 0, "left");
    }

    /// Leaving → Absent for content that nobody wants any more (truncated, deleted).
    pub fn dropped(self) {
        self.step(&[State::Leaving], 0, DIRTY, 0, "dropped");
    }

    /// Leaving → Resident: it could not be written back.
    pub fn kept(self) {
        self.step(&[State::Leaving], 2, 0, 0, "kept");
    }

    /// Adds a pin to a resident page.
    pub fn pin(self) {
        assert_eq!(self.state(), State::Resident, "page word: pinned while not resident");
        self.0.fetch_add(PIN, Ordering::AcqRel);
    }

    /// Takes a pin back; true if it was the last.
    pub fn unpin(self) -> bool {
        let before = self.0.fetch_sub(PIN, Ordering::SeqCst);
        assert!(before >= PIN, "page word: unpinned without a pin");
        before / PIN == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Every sequence of moves that the asserts allow, from Absent: nothing reachable breaks the
    /// two rules that protect data.
    #[test]
    fn no_reachable_move_loses_a_dirty_page() {
        type Move = fn(WordRef<'_>);
        let moves: [(&str, Move); 15] = [
            ("claim_fill", |w| w.claim_fill()),
            ("filled clean", |w| w.filled(false)),
            ("filled dirty", |w| w.filled(true)),
            ("fill_failed", |w| w.fill_failed()),
            ("set_dirty", |w| w.set_dirty()),
            ("claim_clean", |w| w.claim_clean()),
            ("cleaned", |w| w.cleaned(true)),
            ("clean failed", |w| w.cleaned(false)),
            ("doom", |w| w.doom()),
            ("spare", |w| w.spare()),
            ("claim_leave", |w| w.claim_leave()),
            ("written", |w| w.written()),
            ("left", |w| w.left()),
            ("kept", |w| w.kept()),
            ("pin", |w| {
                if w.pins() < 2 {
                    w.pin()
                }
            }),
        ];
        std::panic::set_hook(Box::new(|_| {}));
        let mut seen = HashSet::from([0u32]);
        let mut todo = vec![0u32];
        while let Some(from) = todo.pop() {
            for (name, step) in &moves {
                let cell = AtomicU32::new(from);
                let legal = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    step(Word::from_atomic(&cell))
                }));
                let to = cell.load(Ordering::Relaxed);
                if legal.is_err() {
                    assert_eq!(from, to, "{name} failed half-way from {from:#x}");
                    continue;
                }
                let lost = from & DIRTY != 0 && to & DIRTY == 0;
                assert!(
                    !lost || ["cleaned", "written", "fill_failed"].contains(name),
                    "{name} from {from:#x} cleaned a page without a write-back"
                );
                if to & STATE == 0 {
                    assert_eq!(to, 0, "{name} from {from:#x} left something behind: {to:#x}");
                }
                if from / PIN > 0 && to / PIN > 0 {
                    assert!(
                        matches!(to & STATE, 2),
                        "{name} from {from:#x}: a pinned page is resident"
                    );
                }
                if seen.insert(to) {
                    todo.push(to);
                }
                if from / PIN > 0 {
                    let cell = AtomicU32::new(from);
                    Word::from_atomic(&cell).unpin();
                    let to = cell.load(Ordering::Relaxed);
                    if seen.insert(to) {
                        todo.push(to);
                    }
                }
            }
        }
        let _ = std::panic::take_hook();
        assert!(seen.len() > 15, "the search reached {} words", seen.len());
    }
}
