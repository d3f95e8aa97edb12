//! What ARC and CAR share: two lists of resident pages, two of ghosts, and a target between them.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::{Gauge, Visible};

/// The cache directory of ARC's paper (section III.B): `t1` and `t2` are resident, `b1` and `b2`
/// remember what left them. A policy moves pages and sets their marks itself; a page that is in no
/// list has mark 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    pub(crate) links: Links,
    pub(crate) t1: List,
    pub(crate) t2: List,
    pub(crate) b1: List,
    pub(crate) b2: List,
    pub(crate) marks: Flat<u8>,
    frames: u32,
    /// The papers' `p`: pages that `t1` should have.
    pub(crate) t1_target_pages: f64,
}

impl Directory {
    pub(crate) const fn new(frames: u32) -> Self {
        Self {
            links: Links::new(),
            t1: List::new(),
            t2: List::new(),
            b1: List::new(),
            b2: List::new(),
            marks: Flat::new(),
            frames,
            t1_target_pages: 0.0,
        }
    }

    /// A fault on a page of `b1`, which is still in it: `t1` was too small.
    pub(crate) fn raise_target(&mut self) {
        let step = f64::from(self.b2.len()) / f64::from(self.b1.len());
        self.t1_target_pages = (self.t1_target_pages + step.max(1.0)).min(self.frames.into());
    }

    /// A fault on a page of `b2`, which is still in it: `t2` was too small.
    pub(crate) fn lower_target(&mut self) {
        let step = f64::from(self.b1.len()) / f64::from(self.b2.len());
        self.t1_target_pages = (self.t1_target_pages - step.max(1.0)).max(0.0);
    }

    /// `t1 + b1` is at most the frames, and all four at most twice that. Residents are never
    /// taken: with fewer frames than pages, ghosts alone go.
    pub(crate) fn cut_ghosts(&mut self) {
        let frames = u64::from(self.frames);
        let pages = |lists: &[&List]| lists.iter().map(|list| u64::from(list.len())).sum::<u64>();
        while pages(&[&self.t1, &self.b1]) > frames {
            let Some(page) = self.links.pop_front(&mut self.b1) else { break };
            *self.marks.at(page.index()) = 0;
        }
        while pages(&[&self.t1, &self.t2, &self.b1, &self.b2]) > 2 * frames {
            let page = self.links.pop_front(&mut self.b2);
            let Some(page) = page.or_else(|| self.links.pop_front(&mut self.b1)) else { break };
            *self.marks.at(page.index()) = 0;
        }
    }

    pub(crate) fn resized(&mut self, frames: u32) {
        self.frames = frames;
        self.t1_target_pages = self.t1_target_pages.min(frames.into());
        self.cut_ghosts();
    }

    pub(crate) const fn resident(&self) -> u32 {
        self.t1.len() + self.t2.len()
    }
}

impl Visible for Directory {
    fn gauges(&self) -> Vec<Gauge> {
        vec![
            Gauge { name: "t1_pages", value: self.t1.len().into() },
            Gauge { name: "t1_target_pages", value: self.t1_target_pages },
            Gauge { name: "t2_pages", value: self.t2.len().into() },
            Gauge { name: "b1_pages", value: self.b1.len().into() },
            Gauge { name: "b2_pages", value: self.b2.len().into() },
        ]
    }
}
