//! Uses of pages: what is lent out of them, and for how long.

use super::entries::Entry;
use crate::engine::Engine;
use crate::engine::word::{Use, WordRef};
use crate::library::port::LibraryPort;
use pagekeeper_frames::Place;
use pagekeeper_sys::alias::{AliasRange, ForkMark};
use std::mem::ManuallyDrop;
use std::ops::Range;

/// A use of one page: its bytes, or some of them, until it is dropped.
pub(crate) struct Frame<'a> {
    pub(super) engine: &'a Engine<LibraryPort>,
    pub(super) range: AliasRange<'a>,
    pub(super) word: WordRef<'static>,
    pub(super) place: Place,
    pub(super) how: Use,
    /// Of a page that this use has alone, what short reads look at.
    pub(super) closed: Option<&'a Entry>,
}

impl Frame<'_> {
    /// The bytes.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the page is in a frame and stays there while it is used; who changes bytes
        // through the library has the page alone, or changes some behind the segment's end. (Mappings
        // of it are reached by raw pointers only, whose users promise not to race with this: see
        // `Region`.)
        unsafe { self.range.bytes() }
    }

    /// Some of the bytes, which of a page that is held lie before the segment's end.
    ///
    /// # Panics
    /// They are not in the page.
    #[inline]
    pub(crate) fn part(&self, within: Range<usize>) -> &[u8] {
        let part = self.range.part(within).expect("inside the page");
        // SAFETY: as for `bytes`.
        unsafe { part.bytes() }
    }

    /// The same, to be changed.
    ///
    /// # Panics
    /// They are not in the page, or the use is not exclusive.
    #[inline]
    pub(crate) fn part_mut(&mut self, within: Range<usize>) -> &mut [u8] {
        assert!(self.how.writes(), "a page is used for reading and written");
        let part = self.range.part(within).expect("inside the page");
        // SAFETY: as for `bytes`, and this use excludes all others.
        unsafe { part.bytes_mut() }
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Ends a use for reading, as dropping it does; but in line, so that on the way of a read it is
    /// never in memory.
    #[inline(always)]
    pub(super) fn end(self) {
        let ended = ManuallyDrop::new(self);
        ended.engine.end_use(ended.place, ended.word, ended.how);
    }

    /// Ends an exclusive hold by taking the page out of memory: the page is Leaving then, and the
    /// caller's. Gives the use back if somebody is about to map the page.
    pub(crate) fn take_out(self) -> Result<WordRef<'static>, Self> {
        if self.word.leave_held() {
            let word = self.word;
            std::mem::forget(self);
            Ok(word)
        } else {
            Err(self)
        }
    }
}

impl Drop for Frame<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(entry) = self.closed {
            entry.open();
        }
        self.engine.end_use(self.place, self.word, self.how);
    }
}

/// Bytes of neighbouring pages within one window, which are held, as one slice. They lie before the
/// segment's end, which does not come before them as long as this lives.
pub(crate) struct Span<'a> {
    pub(super) frames: Vec<Frame<'a>>,
    pub(super) range: AliasRange<'a>,
    pub(super) mark: ForkMark,
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        if !self.mark.is_here() {
            // In a forked child: the words are shared with the parent, whose holds these are.
            std::mem::take(&mut self.frames).into_iter().for_each(std::mem::forget);
        }
    }
}

impl Span<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: as for `Frame::bytes`, of each page.
        unsafe { self.range.bytes() }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let writes = self.frames.first().is_some_and(|first| first.how.writes());
        assert!(writes, "pages are held for reading and written");
        // SAFETY: as for `Frame::bytes_mut`, of each page; self is borrowed exclusively.
        unsafe { self.range.bytes_mut() }
    }
}
