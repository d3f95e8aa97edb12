//! What a policy is told, what it is asked, and what each side promises.

use crate::Visible;

/// A page of one manager, numbered densely from zero so that a policy can keep its state in flat
/// arrays. Neighbouring numbers need not be neighbours in a file.
///
/// Memory follows the highest number used: arrays are committed lazily, so numbers that are given
/// out and never touched cost address space only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Page(pub u32);

impl Page {
    /// The highest page number a policy accepts (16 TiB of 4 KiB pages for one manager); the few
    /// above are list marks.
    pub const MAX: Page = Page(u32::MAX - 2);

    /// The page's number as an array index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a segment: a file, a heap, or what else a range of pages is backed by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Segment(pub u32);

/// Where a page lives: its segment and its index in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The segment.
    pub segment: Segment,
    /// Index of the page in the segment (offset in bytes divided by the page size).
    pub index: u64,
}

/// Why a page became resident.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// A reference needed it (a major fault, or a miss in the simulator). The admission *is* that
    /// reference: no `referenced` follows for it.
    Demand,
    /// It was fetched ahead of need and has not been seen referenced.
    Prefetch,
}

/// What a policy asks for beyond victims. Nobody owes it an answer: its decisions must not hang on
/// what becomes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hint {
    /// Fetch pages ahead of need.
    Prefetch {
        /// The first page.
        place: Place,
        /// How many pages from there on.
        pages: u32,
    },
    /// Write a resident page back, if it is dirty; it stays.
    Flush(Page),
    /// Map a resident page, so that its next touch costs nothing (and is not seen).
    Map(Page),
    /// Unmap a resident page, so that its next touch is seen.
    Unmap(Page),
}

/// A page replacement policy for one pool of frames.
///
/// # Contract
///
/// The **caller** MUST
/// - call [`admitted`](Policy::admitted) exactly once when a page becomes resident, and never for
///   a page that is resident already;
/// - call [`referenced`](Policy::referenced) and [`removed`](Policy::removed) only for resident
///   pages;
/// - make room before it admits: with `frames` pages resident, call [`victim`](Policy::victim)
///   first, and treat the answer as gone (no `removed` follows);
/// - pass to `victim` the page that the room is for, when it knows it. It MAY abandon the
///   admission afterwards, and MAY ask for more victims than it admits pages;
/// - ask for all the victims of one fault before it admits any of that fault's pages, when it
///   fetches several at once: to a policy such as MRU the page just admitted is the best victim;
/// - number pages up to [`Page::MAX`].
///
/// The **policy** MUST
/// - answer `victim` with a page that is resident, whenever at least one is, and never twice the
///   same without an admission between;
/// - answer `None` only when nothing is resident;
/// - do what it does in the same order for the same calls: randomness comes from the seed it was
///   built with, so that a replay of a recorded run takes the same decisions;
/// - work when references are *sampled* (some touches are never reported, because the MMU served
///   them) as well as when they are exact;
/// - accept any page number at any time: state arrays grow on demand.
///
/// A policy MAY panic when its caller breaks the contract, naming the page; it never answers with
/// a page that is not resident instead.
///
/// The conformance test in `tests/conformance.rs` holds every registered policy to this, and
/// [`Checked`](crate::Checked) any other one.
pub trait Policy: Send {
    /// Whether the policy wants [`placed`](Policy::placed) calls, which cost a little: policies
    /// that look for sequences do. The answer never changes.
    fn wants_places(&self) -> bool {
        false
    }

    /// Whether the index of a place tells it anything beside the segment, if it wants places. The answer
    /// never changes.
    fn wants_indices(&self) -> bool {
        self.wants_places()
    }

    /// Whether [`referenced`](Policy::referenced) calls change what it does. Making touches of live
    /// memory visible costs time, which a policy that ignores them saves. The answer never changes.
    fn wants_references(&self) -> bool {
        true
    }

    /// Whether [`sampled`](Policy::sampled) calls are worth what they cost. The answer may change.
    fn wants_samples(&self) -> bool {
        self.wants_references()
    }

    /// Whether the policy wants [`dirtied`](Policy::dirtied) and [`cleaned`](Policy::cleaned) calls.
    /// The answer never changes.
    fn wants_dirty(&self) -> bool {
        false
    }

    /// Whether [`take_hints`](Policy::take_hints) ever gives any. The answer never changes.
    fn gives_hints(&self) -> bool {
        false
    }

    /// Whether a decision now depends on touches of watched pages. Where it does not, and they are
    /// hardly touched while they are in memory, fewer of those touches are shown.
    fn watches_closely(&self) -> bool {
        true
    }

    /// Whether [`watches`](Policy::watches) says yes of any page. The answer never changes.
    fn watches_pages(&self) -> bool {
        false
    }

    /// Whether every touch of the page is to be seen, even where touches of mapped pages are not, as
    /// far as evictions pay for that: a policy that judges by a sample of the pages says so of
    /// those. Asked of pages whose [place](Policy::placed) it was told, resident or not.
    fn watches(&mut self, _page: Page) -> bool {
        false
    }

    /// Whether the policy [watches](Policy::watches) other pages than before, since this was asked last:
    /// then all that are resident are asked of again.
    fn watches_others(&mut self) -> bool {
        false
    }

    /// A resident page was unmapped: its next touch will be seen. Told to policies that
    /// [watch pages](Policy::watches_pages), of all of them.
    fn unmapped(&mut self, _page: Page) {}

    /// A resident page was mapped: touches are not seen until it is unmapped. Told to policies that
    /// [watch pages](Policy::watches_pages), of all that are mapped after they were
    /// [admitted](Policy::admitted), touched or not.
    fn mapped(&mut self, _page: Page) {}

    /// Where a page that is not resident lives. If the policy [wants](Policy::wants_places) it,
    /// it comes before each [`victim`](Policy::victim) that names the page, and before each
    /// [`admitted`](Policy::admitted) of it, perhaps for both at once. A number may stand for
    /// another place than last time, when a segment was closed in between: what is remembered of
    /// it is void then.
    fn placed(&mut self, _page: Page, _place: Place) {}

    /// The page became resident.
    fn admitted(&mut self, page: Page, how: Admission);

    /// A page that [`victim`](Policy::victim) gave up stays resident after all, since it is in use;
    /// comes in place of `admitted`, and is no reference: a policy that remembers who left has not seen
    /// it come back. By default like an admission ahead of need.
    fn spared(&mut self, page: Page) {
        self.admitted(page, Admission::Prefetch);
    }

    /// A touch of a resident page was seen (every touch in exact mode, some in sampled mode).
    fn referenced(&mut self, page: Page);

    /// A touch of a resident page was seen because the page had been unmapped for that; pages
    /// around it may have been touched as well, unseen. By default like any reference; a policy
    /// that gives up the pages used last makes holes in what belongs together if it goes by these.
    fn sampled(&mut self, page: Page) {
        self.referenced(page);
    }

    /// A resident page left for a reason that is not this policy's choice: its file was truncated
    /// or closed, or the frame was taken away.
    fn removed(&mut self, page: Page);

    /// A page differs from what its file holds, because it was written. If the policy
    /// [wants](Policy::wants_dirty) it, it comes once when a resident page becomes dirty, before the
    /// [`referenced`](Policy::referenced) of the same touch, and before the
    /// [`admitted`](Policy::admitted) of a page that comes in dirty. A page that leaves is forgotten.
    fn dirtied(&mut self, _page: Page) {}

    /// A resident dirty page was written back. Only if the policy [wants](Policy::wants_dirty) it.
    fn cleaned(&mut self, _page: Page) {}

    /// Appends what the policy asks for since the last call, oldest first.
    fn take_hints(&mut self, _hints: &mut Vec<Hint>) {}

    /// The resident pages in the order in which the policy keeps them, if that is one order: by
    /// when they came or were used, whichever it goes by, the longest ago first. A policy that
    /// takes over is told of the pages in this order; without one, in that of their last seen use.
    fn order(&self) -> Option<Vec<Page>> {
        None
    }

    /// Gives up one resident page, to make room for `incoming` if the caller knows it.
    fn victim(&mut self, incoming: Option<Page>) -> Option<Page>;

    /// The number of frames changed. Resident pages beyond it leave through later `victim` calls.
    fn resized(&mut self, frames: u32);

    /// The number of frames is `most`, and so many of them are all that the policy fills before it is
    /// asked for a victim: others hold pages that no policy has. It may have more for a while. By default
    /// as if there were no others.
    fn fitted(&mut self, frames: u32, _most: u32) {
        self.resized(frames);
    }

    /// Number of pages that this policy holds resident.
    fn resident(&self) -> u32;

    /// What the policy shows of its inside, if anything.
    fn visible(&mut self) -> Option<&mut dyn Visible> {
        None
    }
}

#[deny(clippy::missing_trait_methods)]
impl<P: Policy + ?Sized> Policy for Box<P> {
    crate::pass_on! { this => **this;
        wants_places wants_indices wants_references wants_samples wants_dirty gives_hints
        watches_closely watches_pages watches watches_others unmapped mapped placed admitted spared
        referenced sampled removed dirtied cleaned take_hints order victim resized fitted resident
        visible
    }
}
