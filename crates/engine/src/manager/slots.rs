//! The slots of files: which file each number stands for.
//!
//! Each file that a program shows is given a slot, managed or not: who has it open while somebody else
//! makes it managed learns that from the slot. A managed file keeps its own until it is let go of
//! ([`crate::manager::letgo`]). Of the others no more are kept than [`UNMANAGED_MAX`]; beyond that, the file
//! that was heard of longest ago loses its slot to the next one. Nobody has to be asked: a program
//! that uses it still notices by the slot's incarnation, and shows it again. What must not be
//! forgotten of a file keeps its slot: that somebody has it mapped from the kernel, or that programs
//! were told that it is never managed.

use crate::engine::stats::PassedThrough;
use crate::live::SLOTS_MAX;
use crate::port::FileNo;
use pagekeeper_sys::file::FileId;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// Files that are not managed and keep their slots, as far as others could have them: 10 MiB in the
/// manager, and 5 in a program that opens as many.
pub(crate) const UNMANAGED_MAX: usize = 1 << 15;
/// So many are looked at before a slot that nobody had yet is taken.
const LOOKS: usize = 64;
/// The device of heaps' slots: none that a file is on. Nobody has one open, and it keeps its slot for as
/// long as its process lives.
pub(crate) const HEAP_DEVICE: u64 = u64::MAX;
/// Files that were passed through and have a line of their own in the report.
const PASSED_MAX: usize = 10_000;

/// Which of the files that have an inode number one after the other
/// ([`pagekeeper_sys::file::identity`]).
pub(crate) type Identity = Option<Box<[u8]>>;

/// What a slot stands for.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) name: String,
    pub(crate) id: FileId,
    pub(crate) identity: Identity,
    pub(crate) active: bool,
    /// Passed through for good.
    pub(crate) refused: bool,
    /// Somebody has a mapping of it from the kernel, which shows nothing of the manager's copy.
    pub(crate) plain: bool,
    /// It is to be managed when the standby ends.
    pub(crate) deferred: bool,
    /// It was opened with O_PATH: it may be opened anew although nobody has it open.
    pub(crate) by_path: bool,
    /// Requests that are about it now.
    pub(crate) pins: u32,
    /// When it was last heard of, in messages of any file.
    pub(crate) used: u64,
    /// [`crate::engine::Engine::uses_seen`] then.
    pub(crate) uses_seen: u64,
    /// The report says that it is passed through.
    passed: bool,
    /// When it is worth finding out whether it is mapped from the kernel still.
    pub(crate) look_after: Option<Instant>,
    /// How often that was found out.
    pub(crate) looks: u32,
    /// When it was given to this file, in files.
    serial: u64,
}

impl Slot {
    /// Whether another file may have it.
    fn is_free_for_others(&self) -> bool {
        !(self.active || self.refused || self.plain || self.deferred) && self.pins == 0
    }
}

/// What came of asking for a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Numbered {
    /// The file has this one, which is pinned.
    Is(FileNo),
    /// This one was taken from a file that is not managed. When whatever is known of that is forgotten,
    /// it is [free](Slots::free), and the caller asks again.
    Took(FileNo),
    /// All are in use.
    Full,
}

/// A place in the order in which files that are not managed lose their slots.
#[derive(Debug)]
struct Turn {
    no: FileNo,
    serial: u64,
    /// [`Slot::used`] when it came here.
    used: u64,
}

/// All slots.
pub(crate) struct Slots {
    pub(crate) by_id: HashMap<FileId, FileNo>,
    pub(crate) list: Vec<Slot>,
    passed: Vec<PassedThrough>,
    passed_more: usize,
    pub(crate) notes: Vec<String>,
    /// The run is over: no file becomes managed any more.
    pub(crate) closed: bool,
    /// Slots whose files were let go of, and that a message may still speak of.
    pub(crate) unused: Vec<FileNo>,
    /// Slots for other files.
    pub(crate) free: Vec<FileNo>,
    /// How many files are managed.
    pub(crate) active: usize,
    /// A file had to be left without a slot. Whoever uses it would not learn that it is managed: so no
    /// file is given one from then on.
    pub(crate) exhausted: bool,
    /// A slot was taken from a file that was opened with O_PATH: any file may have been.
    pub(crate) forgot_paths: bool,
    /// Files that were given slots and may not be managed.
    turns: VecDeque<Turn>,
    /// Counts messages of files.
    heard: u64,
    /// Counts files that were given slots.
    serials: u64,
    slots_max: usize,
    unmanaged_max: usize,
    /// With so many in `turns` it is worth finding out what is still mapped from the kernel.
    look_at: usize,
}

impl Default for Slots {
    fn default() -> Slots {
        Slots::new(SLOTS_MAX, UNMANAGED_MAX)
    }
}

impl Slots {
    /// None yet, and no more than so many; so many of them of files that are not managed, as far as
    /// others could have them.
    pub(crate) fn new(slots_max: usize, unmanaged_max: usize) -> Slots {
        Slots {
            by_id: HashMap::new(),
            list: Vec::new(),
            passed: Vec::new(),
            passed_more: 0,
            notes: Vec::new(),
            closed: false,
            unused: Vec::new(),
            free: Vec::new(),
            active: 0,
            exhausted: false,
            forgot_paths: false,
            turns: VecDeque::new(),
            heard: 0,
            serials: 0,
            slots_max,
            unmanaged_max,
            look_at: unmanaged_max + unmanaged_max / 2,
        }
    }

    pub(crate) fn hear_of(&mut self, no: FileNo) {
        self.heard += 1;
        self.list[no as usize].used = self.heard;
    }

    /// The slot that has this inode number, and whether it is this file's, as far as can be told: the
    /// number of a managed file is no other's.
    pub(crate) fn known(&self, id: FileId, identity: &Identity) -> Option<(FileNo, bool)> {
        let no = *self.by_id.get(&id)?;
        let slot = &self.list[no as usize];
        let told = slot.identity.is_some() && identity.is_some();
        Some((no, slot.active || !told || slot.identity == *identity))
    }

    /// The file's slot if it has one, pinned.
    pub(crate) fn pin(&mut self, id: FileId) -> Option<FileNo> {
        let no = *self.by_id.get(&id)?;
        self.list[no as usize].pins += 1;
        Some(no)
    }

    pub(crate) fn unpin(&mut self, no: FileNo) {
        self.list[no as usize].pins -= 1;
    }

    /// The file's slot, pinned, a new one if it has none yet. `take` tells programs that a slot is about
    /// to be another file's.
    pub(crate) fn number(
        &mut self,
        id: FileId,
        identity: Identity,
        name: String,
        take: impl FnMut(FileNo),
    ) -> Numbered {
        if let Some(no) = self.pin(id) {
            return Numbered::Is(no);
        }
        let is_heap = id.dev == HEAP_DEVICE;
        if self.exhausted && !is_heap {
            return Numbered::Full;
        }
        if self.free.is_empty() {
            let is_last = self.list.len() >= self.slots_max;
            let looks = match (is_last, self.turns.len() >= self.unmanaged_max) {
                (true, _) => self.turns.len(),
                (false, true) => LOOKS,
                (false, false) => 0,
            };
            if let Some(no) = self.take_one(looks, take) {
                return Numbered::Took(no);
            }
            if is_last {
                return Numbered::Full;
            }
        }
        self.serials += 1;
        self.heard += 1;
        let slot = Slot {
            name,
            id,
            identity,
            active: false,
            refused: false,
            plain: false,
            deferred: false,
            by_path: false,
            pins: 1,
            used: self.heard,
            uses_seen: 0,
            passed: false,
            look_after: None,
            looks: 0,
            serial: self.serials,
        };
        let no = match self.free.pop() {
            Some(no) => {
                self.list[no as usize] = slot;
                no
            }
            None => {
                self.list.push(slot);
                self.list.len() as FileNo - 1
            }
        };
        if !is_heap {
            if self.turns.len() > 2 * self.list.len() {
                // Of files whose slots are others' by now.
                self.turns.retain(|turn| self.list[turn.no as usize].serial == turn.serial);
            }
            self.turns.push_back(Turn { no, serial: self.serials, used: self.heard });
        }
        self.by_id.insert(id, no);
        Numbered::Is(no)
    }

    /// Takes the slot of the file, of so many that were heard of longest ago, whose turn it is.
    fn take_one(&mut self, looks: usize, mut take: impl FnMut(FileNo)) -> Option<FileNo> {
        // Those in use once more are behind the others when all have been looked at.
        for _ in 0..2 * looks {
            let turn = self.turns.pop_front()?;
            let slot = &self.list[turn.no as usize];
            if slot.serial != turn.serial
                || slot.active
                || self.by_id.get(&slot.id) != Some(&turn.no)
            {
                // It is another's, or will be when the file is let go of.
                continue;
            }
            if !slot.is_free_for_others() || slot.used != turn.used {
                self.turns.push_back(Turn { used: slot.used, ..turn });
                continue;
            }
            self.forgot_paths |= slot.by_path;
            self.by_id.remove(&slot.id);
            take(turn.no);
            return Some(turn.no);
        }
        None
    }

    /// Whether so many files keep their slots that it is time to find out which are mapped from the
    /// kernel still.
    pub(crate) fn are_many_kept(&self) -> bool {
        self.turns.len() >= self.look_at && self.free.is_empty()
    }

    /// That was found out, and `is_mapped` says it. The slots of files that are so no more are taken as
    /// far as they are too many, as [`number`](Self::number) takes one.
    pub(crate) fn looked(
        &mut self,
        is_mapped: impl Fn(&Slot) -> bool,
        mut take: impl FnMut(FileNo),
    ) -> Vec<FileNo> {
        for slot in &mut self.list {
            slot.plain = slot.plain && is_mapped(slot);
        }
        let mut taken = Vec::new();
        for _ in self.unmanaged_max..self.turns.len() {
            match self.take_one(LOOKS, &mut take) {
                Some(no) => taken.push(no),
                None => break,
            }
        }
        // Not before there are half as many again.
        let kept = self.turns.len().max(self.unmanaged_max);
        self.look_at = kept + kept / 2;
        taken
    }

    /// Notes that a file is passed through.
    pub(crate) fn pass(&mut self, no: FileNo, reason: String) {
        let slot = &mut self.list[no as usize];
        if !std::mem::replace(&mut slot.passed, true) {
            match self.passed.len() {
                0..PASSED_MAX => {
                    self.passed.push(PassedThrough { name: slot.name.clone(), reason });
                }
                _ => self.passed_more += 1,
            }
        }
    }

    /// It is not any more.
    pub(crate) fn pass_no_more(&mut self, no: FileNo) {
        let slot = &mut self.list[no as usize];
        if std::mem::take(&mut slot.passed) {
            match self.passed.iter().position(|passed| passed.name == slot.name) {
                Some(at) => _ = self.passed.remove(at),
                None => self.passed_more = self.passed_more.saturating_sub(1),
            }
        }
    }

    /// Files that were passed through.
    pub(crate) fn passed_through(&self) -> Vec<PassedThrough> {
        let mut passed = self.passed.clone();
        if self.passed_more > 0 {
            let name = format!("{} other files", self.passed_more);
            passed.push(PassedThrough { name, reason: "for reasons like these".to_owned() });
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ino: u64) -> FileId {
        FileId { dev: 1, ino }
    }

    /// The slot that a file is given, unpinned, whoever loses it.
    fn number(slots: &mut Slots, ino: u64) -> Option<FileNo> {
        loop {
            match slots.number(id(ino), None, format!("{ino}"), |_| {}) {
                Numbered::Is(no) => {
                    slots.unpin(no);
                    return Some(no);
                }
                Numbered::Took(no) => slots.free.push(no),
                Numbered::Full => {
                    slots.exhausted = true;
                    return None;
                }
            }
        }
    }

    /// Two programs that opened a file in the same moment once got a slot each, and each its own
    /// copy of the file's pages: what the one stored, the other's write-back undid.
    #[test]
    fn a_file_has_one_slot_whoever_asks() {
        let mut slots = Slots::default();
        assert_eq!(number(&mut slots, 7), Some(0));
        assert_eq!(number(&mut slots, 8), Some(1));
        assert_eq!(number(&mut slots, 7), Some(0));
        assert_eq!(slots.list.len(), 2);
    }

    /// Files that were not managed kept their slots for ever: after a million of them, however small,
    /// nothing more was managed, and nobody was told.
    #[test]
    fn files_that_are_not_managed_lose_their_slots_to_others() {
        let mut slots = Slots::new(8, 8);
        for ino in 0..1000 {
            assert!(number(&mut slots, ino).is_some(), "file {ino}");
        }
        assert_eq!((slots.list.len(), slots.by_id.len(), slots.turns.len()), (8, 8, 8));
        // Who is heard of again stays longer than who is not.
        slots.hear_of(slots.by_id[&id(992)]);
        let _ = number(&mut slots, 1000);
        assert!(slots.by_id.contains_key(&id(992)) && !slots.by_id.contains_key(&id(993)));
    }

    /// Each file that came and went left its place in the order behind, for ever.
    #[test]
    fn files_that_come_and_go_leave_nothing_behind() {
        let mut slots = Slots::new(8, 8);
        for ino in 0..1000 {
            let no = number(&mut slots, ino).expect("a slot");
            // As one that was managed, and was let go of.
            slots.by_id.remove(&id(ino));
            slots.free.push(no);
        }
        assert!(slots.turns.len() <= 2 * slots.list.len() + 1, "{} turns", slots.turns.len());
    }

    #[test]
    fn what_must_not_be_forgotten_keeps_its_slot() {
        let mut slots = Slots::new(8, 4);
        for ino in 0..4 {
            assert_eq!(number(&mut slots, ino), Some(ino as FileNo));
        }
        slots.list[0].refused = true;
        slots.list[1].plain = true;
        slots.list[2].active = true;
        slots.pin(id(3));
        for ino in 10..1000 {
            assert!(number(&mut slots, ino).is_some());
        }
        for ino in 0..4 {
            assert_eq!(slots.by_id[&id(ino)], ino as FileNo);
        }
        assert_eq!(slots.list.len(), 5);
        // Nobody has it mapped any more.
        assert_eq!(slots.looked(|_| false, |_| {}), []);
        slots.unpin(3);
        let _ = (1000..1010).map(|ino| number(&mut slots, ino)).count();
        assert!(!slots.by_id.contains_key(&id(1)) && !slots.by_id.contains_key(&id(3)));
    }

    /// Who was told that a file has no slot hears no more of it: it must not be managed later, when
    /// there are slots again.
    #[test]
    fn without_a_slot_left_no_file_is_given_one_any_more() {
        let mut slots = Slots::new(4, 4);
        for ino in 0..4 {
            let no = number(&mut slots, ino).unwrap();
            slots.list[no as usize].active = true;
        }
        assert_eq!(number(&mut slots, 4), None);
        assert_eq!(number(&mut slots, 2), Some(2));
        slots.free.push(3);
        assert_eq!(number(&mut slots, 4), None);
        // Of a heap nobody hears in any other way.
        let heap = FileId { dev: HEAP_DEVICE, ino: 4 };
        assert_eq!(slots.number(heap, None, "heap".into(), |_| {}), Numbered::Is(3));
    }

    #[test]
    fn of_many_files_that_are_passed_through_the_first_are_listed() {
        let mut slots = Slots::default();
        let no = number(&mut slots, 1).unwrap();
        for n in 0..PASSED_MAX + 5 {
            slots.list[no as usize].name = format!("{n}");
            slots.list[no as usize].passed = false;
            slots.pass(no, "it is".into());
        }
        assert_eq!(slots.passed_through().len(), PASSED_MAX + 1);
        assert_eq!(slots.passed_through().last().unwrap().name, "5 other files");
    }
}
