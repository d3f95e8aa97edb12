//! Which pages were touched when, as a map.
use pagekeeper_policy::Page;
use pagekeeper_sim::References;
use serde::Serialize;

/// Where pages are on a map: by segment, then by index, pages never referenced left out; neighbours
/// share a row where there are more pages than rows, and so do all that were at one place of a heap.
#[derive(Clone, Debug)]
pub struct Layout {
    row_of: Vec<u32>,
    /// Per row: its first page, as segment place and index.
    first_of: Vec<(usize, u64)>,
    places: u64,
}

impl Layout {
    /// A layout of at most `rows_most` rows, and at least one.
    pub fn of(references: &References, rows_most: u32) -> Self {
        let pages = references.pages();
        let mut order: Vec<u32> = (0..pages).collect();
        order.sort_unstable_by_key(|page| references.place(Page(*page)));
        let place = |page: u32| references.place(Page(page));
        let places = order.chunk_by(|left, right| place(*left) == place(*right));
        let count = places.clone().count() as u64;
        let rows = u64::from(rows_most.max(1)).min(count);
        let mut row_of = vec![0; pages as usize];
        let mut first_of = Vec::with_capacity(rows as usize);
        for (rank, pages) in places.enumerate() {
            let row = rank as u64 * rows / count;
            pages.iter().for_each(|page| row_of[*page as usize] = row as u32);
            if row == first_of.len() as u64 {
                first_of.push(place(pages[0]));
            }
        }
        Self { row_of, first_of, places: count }
    }

    /// The row of a page, from 0.
    ///
    /// # Panics
    /// If the page is not one of the string's.
    pub fn row_of(&self, page: Page) -> u32 {
        self.row_of[page.index()]
    }

    /// How many places there are: one for each page, and for all that were at one place of a heap.
    pub fn places(&self) -> u64 {
        self.places
    }

    /// The first page of every row: its segment, as a place in [`References::segments`], and its
    /// index there.
    pub fn first_pages(&self) -> &[(usize, u64)] {
        &self.first_of
    }
}

/// Counts by time and page (a space-time graph, binned): UBM paper Figures 1 (a) and 7.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SpaceTime {
    /// References in each column; the last may have fewer.
    pub column_refs: u64,
    /// Columns.
    pub columns: u32,
    /// Rows, of a [`Layout`].
    pub rows: u32,
    /// What is not zero, column by column.
    pub cells: Vec<Cell>,
}

/// A cell that is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// From 0, in time.
    pub column: u32,
    /// From 0, of the [`Layout`].
    pub row: u32,
    /// How many events.
    pub count: u64,
}

impl SpaceTime {
    /// The map of all references, in at most `columns_most` columns.
    pub fn of(references: &References, layout: &Layout, columns_most: u32) -> Self {
        let mut map = Mapping::new(references.len(), layout, columns_most);
        for (position, (page, _)) in references.iter().enumerate() {
            map.add(position as u64, layout.row_of(page));
        }
        map.finish()
    }
}

/// A map in the making.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    column_refs: u64,
    columns: u32,
    rows: u32,
    counts: Vec<u64>,
}

impl Mapping {
    pub(crate) fn new(references: usize, layout: &Layout, columns_most: u32) -> Self {
        let column_refs = (references as u64).div_ceil(u64::from(columns_most.max(1))).max(1);
        let columns = (references as u64).div_ceil(column_refs) as u32;
        let rows = layout.first_of.len() as u32;
        Self { column_refs, columns, rows, counts: vec![0; columns as usize * rows as usize] }
    }

    pub(crate) fn add(&mut self, position: u64, row: u32) {
        let column = position / self.column_refs;
        self.counts[(column * u64::from(self.rows)) as usize + row as usize] += 1;
    }

    pub(crate) fn finish(self) -> SpaceTime {
        let Self { column_refs, columns, rows, counts } = self;
        let cells = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        let cells = cells.map(|(place, count)| Cell {
            column: (place / rows as usize) as u32,
            row: (place % rows as usize) as u32,
            count: *count,
        });
        SpaceTime { column_refs, columns, rows, cells: cells.collect() }
    }
}
