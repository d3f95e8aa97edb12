//! Flat arrays over page numbers that grow on demand and commit memory lazily.

/// Elements looked at together when an array grows: a page of `u32`s.
const CHUNK: usize = 1024;
/// Smallest allocation, in elements.
const LEAST: usize = 1024;

/// One `T` per page number, all zero (`T::default()`) until written.
///
/// Growing asks the allocator for zeroed memory, which the operating system commits on first
/// write, and copies only what is not zero; so a page number far above the others costs address
/// space and not memory. `T` must be an integer, or an array or pair of them, for that to hold.
#[derive(Clone, Debug, Default)]
pub struct Flat<T> {
    items: Vec<T>,
}

impl<T: Copy + Default + PartialEq> Flat<T> {
    /// An empty array: every element reads as zero.
    pub const fn new() -> Self {
        Self { items: Vec::new() }
    }

    /// The element, or zero where nothing was written yet.
    #[inline]
    pub fn get(&self, index: usize) -> T {
        self.items.get(index).copied().unwrap_or_default()
    }

    /// The element to change; the array grows to hold it.
    #[inline]
    pub fn slot(&mut self, index: usize) -> &mut T {
        if index >= self.items.len() {
            self.grow(index);
        }
        &mut self.items[index]
    }

    /// The element to change, which must be within what was grown for already.
    ///
    /// # Panics
    /// If no [`slot`](Self::slot) call reached this far.
    #[inline]
    pub fn at(&mut self, index: usize) -> &mut T {
        &mut self.items[index]
    }

    /// All elements that were grown for.
    #[inline]
    pub fn as_slice(&self) -> &[T] {
        &self.items
    }

    /// The same to change: for code that is given the memory and not the array.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.items
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        let zero = T::default();
        let length = (index + 1).max(self.items.len().saturating_mul(2)).max(LEAST);
        let mut grown = vec![zero; length];
        for (old, new) in self.items.chunks(CHUNK).zip(grown.chunks_mut(CHUNK)) {
            if old.iter().any(|item| *item != zero) {
                new[..old.len()].copy_from_slice(old);
            }
        }
        self.items = grown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_zero_beyond_the_end_and_keeps_values_over_growth() {
        let mut flat: Flat<u32> = Flat::new();
        assert_eq!(flat.get(1 << 20), 0);
        *flat.slot(3) = 7;
        *flat.slot(5000) = 8;
        *flat.slot(1 << 21) = 9;
        assert_eq!((flat.get(3), flat.get(5000), flat.get(1 << 21)), (7, 8, 9));
        assert_eq!(flat.get(4), 0);
    }
}
