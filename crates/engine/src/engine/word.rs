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
//!                                           └────▶ Cleaning (dirty; it takes too long)
//! ```
//!
//! The dirty bit is set before a program may write and cleared only after its write-back
//! succeeded. *Doomed* marks a page that was chosen as a victim while it was busy. Pins are held
//! while a thread maps the page or copies its content; a pinned page neither leaves nor is cleaned,
//! and nobody sleeps with a pin. *Holds* are a program's own, for as long as it likes: a held page
//! does not leave, and when it is chosen as a victim, it stays and others go. Transitions are made
//! under the engine's lock; uses ([`Use`]) begin and end without it. The words live in shared
//! memory, so that the holder process can tell what is dirty when the manager dies.

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
const RESIDENT: u32 = 2;
const DIRTY: u32 = 1 << 3;
const DOOMED: u32 = 1 << 4;
/// One user has its content alone.
const EXCLUSIVE: u32 = 1 << 5;
/// It was chosen as a victim while held; the brain waits to hear that it no longer is.
const KEPT: u32 = 1 << 6;
/// The brain wants to hear of the next use at once.
const NOTICE: u32 = 1 << 7;
/// Somebody sleeps until uses of it end.
const AWAITED: u32 = 1 << 8;
const PIN: u32 = 1 << 9;
const HOLD: u32 = 1 << 20;
const PINS: u32 = HOLD / PIN - 1;
/// Most pins, and most holds, on a page: a count whose highest bit is set is full.
const PINS_MAX: u32 = 0x400;
const HOLDS_MAX: u32 = 0x800;

const fn pins(word: u32) -> u32 {
    (word / PIN) & PINS
}

const fn holds(word: u32) -> u32 {
    word / HOLD
}

/// How a page's content is used by the library's callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Copied out: a pin.
    Read,
    /// Overwritten: a pin, alone.
    Write,
    /// Lent out for reading: a hold.
    Shared,
    /// Lent out for writing: a hold, alone.
    Exclusive,
}

impl Use {
    /// The content is changed.
    pub fn writes(self) -> bool {
        matches!(self, Use::Write | Use::Exclusive)
    }

    const fn bits(self) -> u32 {
        match self {
            Use::Read => PIN,
            Use::Write => PIN | EXCLUSIVE,
            Use::Shared => HOLD,
            Use::Exclusive => HOLD | EXCLUSIVE,
        }
    }
}

/// How a use ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Others use the page.
    Among,
    /// Nobody else uses the page.
    Last,
    /// Nobody else uses the page so, and somebody sleeps for that: see [`WordRef::awaits`].
    Awaited,
    /// Nobody holds the page any longer, and the brain is to be told: see [`WordRef::take_kept`].
    Kept,
}

/// What became of a page that was chosen as a victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chosen {
    /// It is Leaving now.
    Leaving,
    /// It was busy: it is doomed.
    Doomed,
    /// A program holds it: it stays.
    Held,
    /// Somebody else takes it out.
    Gone,
}

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
        write!(f, ", {} pins, {} holds", self.pins(), self.holds())
    }
}

impl WordRef<'_> {
    fn load(self) -> u32 {
        // Sequentially consistent with `end` and the engine's count of sleepers: either the last
        // user sees the sleeper, or the sleeper sees the page without pins.
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
        pins(self.load())
    }

    /// Number of holds.
    pub fn holds(self) -> u32 {
        holds(self.load())
    }

    /// Resident, and nobody is doing anything with it.
    pub fn idle(self) -> bool {
        let word = self.load();
        word & STATE == RESIDENT && word / PIN == 0
    }

    /// Changes the word if `to` says how; the word that was changed.
    fn change(self, to: impl FnMut(u32) -> Option<u32>) -> Option<u32> {
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, to).ok()
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
        self.step(&[State::Filling], 0, DIRTY | DOOMED | NOTICE | AWAITED, 0, "fill_failed");
    }

    /// Marks a resident page dirty, before write access is given. Also while it is pinned.
    pub fn set_dirty(self) {
        let state = self.state();
        assert!(state == State::Resident, "page word: written while {state:?}");
        self.0.fetch_or(DIRTY, Ordering::AcqRel);
    }

    /// Resident, dirty, unpinned → Cleaning; false if it is not so. Who holds it for reading goes
    /// on reading.
    #[must_use]
    pub fn claim_clean(self) -> bool {
        let to = |w: u32| {
            let ready = w & (STATE | DIRTY | EXCLUSIVE) == RESIDENT | DIRTY && pins(w) == 0;
            ready.then_some(w & !STATE | 3)
        };
        self.change(to).is_some()
    }

    /// Cleaning → Resident; clean if its write-back succeeded.
    pub fn cleaned(self, success: bool) {
        self.step(&[State::Cleaning], 2, if success { DIRTY } else { 0 }, 0, "cleaned");
    }

    /// Chosen as a victim: leaves, or is marked.
    pub fn choose(self) -> Chosen {
        let mut chosen = Chosen::Gone;
        self.change(|w| {
            assert!(w & STATE != 0, "page word: an absent page was chosen as a victim");
            let to = if w & STATE == 4 {
                (Chosen::Gone, w)
            } else if holds(w) > 0 {
                (Chosen::Held, w | KEPT)
            } else if w & STATE == RESIDENT && pins(w) == 0 {
                (Chosen::Leaving, w & !(STATE | DOOMED | KEPT) | 4)
            } else {
                (Chosen::Doomed, w | DOOMED)
            };
            chosen = to.0;
            Some(to.1)
        });
        chosen
    }

    /// A doomed page stays after all.
    pub fn spare(self) {
        assert!(self.doomed(), "page word: spared without being doomed");
        self.0.fetch_and(!DOOMED, Ordering::AcqRel);
    }

    /// Resident, idle → Leaving; false if it is not so.
    #[must_use]
    pub fn claim_leave(self) -> bool {
        let to = |w: u32| {
            let idle = w & STATE == RESIDENT && w / PIN == 0;
            idle.then_some(w & !(STATE | DOOMED | KEPT) | 4)
        };
        self.change(to).is_some()
    }

    /// Resident, held exclusively by the caller and otherwise unused → Leaving, the hold ended;
    /// false if somebody is about to map it.
    #[must_use]
    pub fn leave_held(self) -> bool {
        let to = |w: u32| {
            assert!(w & EXCLUSIVE != 0 && holds(w) == 1, "page word: taken out without its hold");
            let ready = w & STATE == RESIDENT && pins(w) == 0;
            ready.then_some(w & DIRTY | 4)
        };
        self.change(to).is_some()
    }

    /// Leaving: its content was written back (the page still has to be taken out).
    pub fn written(self) {
        assert_eq!(self.state(), State::Leaving);
        self.0.fetch_and(!DIRTY, Ordering::AcqRel);
    }

    /// Leaving → Absent. A dirty page cannot: its write-back comes first.
    pub fn left(self) {
        assert!(!self.dirty(), "page word: a dirty page left memory");
        self.step(&[State::Leaving], 0, NOTICE | AWAITED, 0, "left");
    }

    /// Leaving → Absent for content that nobody wants any more (truncated, deleted).
    pub fn dropped(self) {
        self.step(&[State::Leaving], 0, DIRTY | NOTICE | AWAITED, 0, "dropped");
    }

    /// Leaving → Cleaning: its write-back goes on, but it stays.
    pub fn stays_while_written(self) {
        assert!(self.dirty(), "page word: its write-back is over");
        self.step(&[State::Leaving], 3, 0, 0, "stays_while_written");
    }

    /// Leaving → Resident: it could not be written back.
    pub fn kept(self) {
        self.step(&[State::Leaving], 2, 0, 0, "kept");
    }

    /// Adds a pin to a resident page.
    pub fn pin(self) {
        let to = |w: u32| {
            assert_eq!(w & STATE, RESIDENT, "page word: pinned while not resident");
            (pins(w) < PINS_MAX).then_some(w + PIN)
        };
        // So many threads that copy from one page at this moment go on, and end.
        while self.change(to).is_none() {
            std::thread::yield_now();
        }
    }

    /// Adds a pin to a resident page, unless it is being overwritten this moment ([`Use::Write`]);
    /// then false. Who holds it goes on: the caller changes no byte that was lent out.
    #[must_use]
    pub fn pin_beside_holds(self) -> bool {
        let to = |w: u32| {
            assert_eq!(w & STATE, RESIDENT, "page word: pinned while not resident");
            let written = w & EXCLUSIVE != 0 && holds(w) == 0;
            (!written && pins(w) < PINS_MAX).then_some(w + PIN)
        };
        self.change(to).is_some()
    }

    /// The next use begins under the engine's lock: the brain is to be told of it at once, or it needs more
    /// than being begun.
    pub fn notice(self) {
        self.0.fetch_or(NOTICE, Ordering::AcqRel);
    }

    /// Begins a use without the engine's lock, if nothing else has to be done for it first: the
    /// page is resident and at rest, is dirty if it is to be written, and is not used in a way
    /// that excludes this one, nor awaited by somebody who may go first.
    #[inline]
    #[must_use]
    pub fn try_use(self, how: Use) -> bool {
        let bits = how.bits();
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let is_told_of = word & (NOTICE | AWAITED) != 0;
            if !Self::usable(word, how) || is_told_of || how.writes() && word & DIRTY == 0 {
                return false;
            }
            let to = word + bits;
            match self.0.compare_exchange_weak(word, to, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    #[inline]
    fn usable(word: u32, how: Use) -> bool {
        let in_use = match how {
            Use::Read => PIN * PINS_MAX,
            Use::Shared => HOLD * HOLDS_MAX,
            Use::Write | Use::Exclusive => !(PIN - 1),
        };
        word & (STATE | DOOMED | EXCLUSIVE | in_use) == RESIDENT
    }

    /// Somebody has its content alone, for as long as a program likes.
    pub fn is_held_alone(self) -> bool {
        let word = self.load();
        word & EXCLUSIVE != 0 && holds(word) > 0
    }

    /// As many programs hold it as a page can have: who would hold it too might wait for ever.
    pub fn is_held_by_most(self) -> bool {
        holds(self.load()) >= HOLDS_MAX
    }

    /// Whether [`begin`](Self::begin) would succeed now.
    pub fn is_usable(self, how: Use) -> bool {
        Self::usable(self.load(), how)
    }

    /// As [`is_usable`](Self::is_usable); if not, whoever ends the last use of a kind is told that somebody
    /// awaits that ([`Ended::Awaited`]). A page that is not in memory is not marked.
    #[must_use]
    pub fn is_usable_or_awaited(self, how: Use) -> bool {
        let mut is_usable = false;
        self.change(|w| {
            is_usable = Self::usable(w, how);
            (w & STATE != 0 && !is_usable).then_some(w | AWAITED)
        });
        is_usable
    }

    /// The same of whatever use there is now, or will be.
    pub fn awaits(self) {
        self.change(|w| (w & STATE != 0).then_some(w | AWAITED));
    }

    /// Those who awaited the end of uses look for themselves now, and ask again if need be.
    pub fn awaits_no_more(self) {
        self.0.fetch_and(!AWAITED, Ordering::AcqRel);
    }

    /// Begins a use under the engine's lock, by whoever tells the brain of it; a page that is to be
    /// written becomes dirty. False if the page is in motion, or used in a way that excludes this.
    #[must_use]
    pub fn begin(self, how: Use) -> bool {
        let dirty = if how.writes() { DIRTY } else { 0 };
        let to = |w: u32| Self::usable(w, how).then_some((w & !NOTICE | dirty) + how.bits());
        self.change(to).is_some()
    }

    /// Ends a use.
    #[inline]
    pub fn end(self, how: Use) -> Ended {
        let before = self.0.fetch_sub(how.bits(), Ordering::SeqCst);
        if before & !(STATE | DIRTY | DOOMED | NOTICE) == how.bits() {
            // Nobody else used it, and nobody waits to hear: nearly every use ends so.
            return Ended::Last;
        }
        Self::ended(before, how)
    }

    #[cold]
    fn ended(before: u32, how: Use) -> Ended {
        let count =
            if matches!(how, Use::Read | Use::Write) { pins(before) } else { holds(before) };
        assert!(count > 0, "page word: a use ended that did not begin");
        let after = before - how.bits();
        // Readers wait for a writer, writers for all, and a write-back for pins.
        let is_last = how.writes() || count == 1;
        match (holds(after), after / PIN) {
            (0, _) if after & KEPT != 0 => Ended::Kept,
            _ if is_last && after & AWAITED != 0 => Ended::Awaited,
            (_, 0) => Ended::Last,
            _ => Ended::Among,
        }
    }

    /// Whether the brain waits to hear that the page is no longer held; it is told once.
    #[must_use]
    pub fn take_kept(self) -> bool {
        let to = |w: u32| (w & KEPT != 0 && holds(w) == 0).then_some(w & !KEPT);
        self.change(to).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_page_has_so_many_users_and_no_more() {
        for how in [Use::Read, Use::Shared] {
            let cell = AtomicU32::new(RESIDENT | DIRTY);
            let word = Word::from_atomic(&cell);
            let most = if how == Use::Read { PINS_MAX } else { HOLDS_MAX };
            for _ in 0..most {
                assert!(word.try_use(how));
            }
            assert!(!word.try_use(how) && !word.begin(how) && !word.try_use(Use::Write));
            // Uses of the other kind are counted apart.
            let other = if how == Use::Read { Use::Shared } else { Use::Read };
            assert!(word.try_use(other));
            assert_eq!(word.end(other), Ended::Among);
            for left in (0..most).rev() {
                assert_eq!(word.end(how), if left > 0 { Ended::Among } else { Ended::Last });
            }
            assert_eq!(word.load(), RESIDENT | DIRTY);
        }
    }

    #[test]
    fn a_page_is_pinned_beside_holds_and_not_beside_a_write() {
        for (how, may) in [(Use::Exclusive, true), (Use::Shared, true), (Use::Write, false)] {
            let cell = AtomicU32::new(RESIDENT | DIRTY);
            let word = Word::from_atomic(&cell);
            assert!(word.try_use(how));
            assert_eq!(word.pin_beside_holds(), may, "{how:?}");
            word.end(how);
            assert_eq!(word.try_use(Use::Write), !may, "{how:?}");
        }
    }

    #[test]
    fn the_last_hold_of_a_victim_that_stayed_is_told() {
        let cell = AtomicU32::new(RESIDENT);
        let word = Word::from_atomic(&cell);
        assert!(word.try_use(Use::Shared) && word.try_use(Use::Shared) && word.try_use(Use::Read));
        assert_eq!(word.choose(), Chosen::Held);
        assert_eq!(word.end(Use::Shared), Ended::Among);
        assert_eq!(word.end(Use::Shared), Ended::Kept);
        // Told by whoever comes first, and once.
        assert_eq!(word.end(Use::Read), Ended::Kept);
        assert!(word.take_kept() && !word.take_kept());
    }

    #[test]
    fn who_awaits_the_end_of_uses_is_told_by_the_last_of_a_kind() {
        let cell = AtomicU32::new(RESIDENT | DIRTY);
        let word = Word::from_atomic(&cell);
        assert!(word.is_usable_or_awaited(Use::Exclusive) && word.load() & AWAITED == 0);
        assert!(word.try_use(Use::Read) && word.try_use(Use::Read) && word.try_use(Use::Shared));
        assert!(word.is_usable_or_awaited(Use::Read) && !word.is_usable_or_awaited(Use::Write));
        // Who comes now asks who goes first.
        assert!(!word.try_use(Use::Read) && word.is_usable(Use::Read));
        assert_eq!(word.end(Use::Read), Ended::Among);
        assert_eq!(word.end(Use::Read), Ended::Awaited);
        assert_eq!(word.end(Use::Shared), Ended::Awaited);
        assert!(word.begin(Use::Exclusive));
        assert!(word.pin_beside_holds());
        assert_eq!(word.end(Use::Exclusive), Ended::Awaited);
        word.awaits_no_more();
        assert_eq!(word.end(Use::Read), Ended::Last);
        assert!(word.try_use(Use::Write));
    }

    /// Every sequence of moves that the asserts allow, from Absent: nothing reachable breaks the
    /// two rules that protect data.
    #[test]
    fn no_reachable_move_loses_a_dirty_page() {
        type Move = fn(WordRef<'_>);
        let begin = |w: WordRef<'_>, how: Use, locked: bool| {
            if w.pins() + w.holds() < 3 {
                let _ = if locked { w.begin(how) } else { w.try_use(how) };
            }
        };
        let moves: &[(&str, Move)] = &[
            ("claim_fill", |w| w.claim_fill()),
            ("filled clean", |w| w.filled(false)),
            ("filled dirty", |w| w.filled(true)),
            ("fill_failed", |w| w.fill_failed()),
            ("set_dirty", |w| w.set_dirty()),
            ("claim_clean", |w| {
                let _ = w.claim_clean();
            }),
            ("cleaned", |w| w.cleaned(true)),
            ("clean failed", |w| w.cleaned(false)),
            ("choose", |w| {
                let _ = w.choose();
            }),
            ("spare", |w| w.spare()),
            ("claim_leave", |w| {
                let _ = w.claim_leave();
            }),
            ("leave_held", |w| {
                let _ = w.leave_held();
            }),
            ("written", |w| w.written()),
            ("left", |w| w.left()),
            ("stays_while_written", |w| w.stays_while_written()),
            ("kept", |w| w.kept()),
            ("take_kept", |w| {
                let _ = w.take_kept();
            }),
            ("notice", |w| {
                if w.state() == State::Resident {
                    w.notice()
                }
            }),
            ("usable or awaited", |w| {
                let _ = w.is_usable_or_awaited(Use::Exclusive);
            }),
            ("awaits", |w| w.awaits()),
            ("awaits_no_more", |w| w.awaits_no_more()),
            ("pin", |w| {
                if w.pins() < 2 {
                    w.pin()
                }
            }),
            ("pin_beside_holds", |w| {
                if w.pins() < 2 {
                    let _ = w.pin_beside_holds();
                }
            }),
        ];
        let uses = [Use::Read, Use::Write, Use::Shared, Use::Exclusive];
        std::panic::set_hook(Box::new(|_| {}));
        let mut seen = HashSet::from([0u32]);
        let mut todo = vec![0u32];
        while let Some(from) = todo.pop() {
            let mut reached = Vec::new();
            for (name, step) in moves {
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
                reached.push((*name, to));
            }
            for how in uses {
                for locked in [false, true] {
                    let cell = AtomicU32::new(from);
                    begin(Word::from_atomic(&cell), how, locked);
                    let to = cell.load(Ordering::Relaxed);
                    assert!(
                        to == from || !how.writes() || to & DIRTY != 0,
                        "a page that is clean is written: {from:#x}"
                    );
                    reached.push(("begin", to));
                }
                // Only what began can end.
                let exclusive = from & EXCLUSIVE != 0;
                let could = match how {
                    Use::Read => pins(from) > u32::from(exclusive && holds(from) == 0),
                    Use::Write => exclusive && holds(from) == 0,
                    Use::Shared => holds(from) > 0 && !exclusive,
                    Use::Exclusive => exclusive && holds(from) == 1,
                };
                if could {
                    let cell = AtomicU32::new(from);
                    Word::from_atomic(&cell).end(how);
                    reached.push(("end", cell.load(Ordering::Relaxed)));
                }
            }
            for (name, to) in reached {
                if to & STATE == 0 {
                    assert_eq!(to, 0, "{name} from {from:#x} left something behind: {to:#x}");
                }
                let state = to & STATE;
                assert!(
                    pins(to) == 0 || state == RESIDENT,
                    "{name} from {from:#x}: a pinned page is resident"
                );
                assert!(
                    holds(to) == 0 || state == RESIDENT || state == 3 && to & EXCLUSIVE == 0,
                    "{name} from {from:#x}: a held page stays"
                );
                assert!(
                    to & EXCLUSIVE == 0 || state == RESIDENT && holds(to) <= 1 && to & DIRTY != 0,
                    "{name} from {from:#x}: nobody writes here alone: {to:#x}"
                );
                if seen.insert(to) {
                    todo.push(to);
                }
            }
        }
        let _ = std::panic::take_hook();
        assert!(seen.len() > 15, "the search reached {} words", seen.len());
    }
}
