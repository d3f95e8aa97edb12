//! Table 2 of the paper on SM and DIAS (S. Chang, K. Zhang: Application Specific Memory Management): a
//! product of matrices of 1000 x 1000 doubles by "an optimized Robert's algorithm", on a machine with
//! 32 MB.
//!
//! That is `mm -r` of M. Smotherman's collection of such programs (1993, Robert's of 1995). What is
//! written down here is which pages it touches: two matrices are filled, a third to clear the
//! processor's cache, one is transposed, rows are multiplied with rows, and all is checked.
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{References, ReferencesBuilder, SweepOptions, sweep};

/// Rows and columns.
const N: u64 = 1000;
/// What such a machine leaves a program of its 32 MB: LRU's faults are the same from 4,800 to 5,600.
const FRAMES: u32 = 5300;

/// Arrays of the program, one after the other in its memory.
#[derive(Clone, Copy)]
enum Matrix {
    A,
    B,
    Product,
    Transposed,
    Unused,
}

struct Touches {
    references: ReferencesBuilder,
    last: Option<u64>,
}

impl Touches {
    /// Of one element; again in the same page it is no reference of its own.
    fn touch(&mut self, matrix: Matrix, row: u64, column: u64, is_store: bool) {
        let page = ((matrix as u64 * N + row) * N + column) * 8 / 4096;
        if self.last.replace(page) != Some(page) {
            self.references.push((0, page, is_store, 0).into()).unwrap();
        }
    }

    /// Of a row, from its first element to its last, a page apart.
    fn touch_row(&mut self, matrix: Matrix, row: u64, is_store: bool) {
        (0..N).step_by(512).chain([N - 1]).for_each(|k| self.touch(matrix, row, k, is_store));
    }
}

fn product() -> References {
    let mut touches = Touches { references: References::builder(), last: None };
    for i in 0..N {
        for j in (0..N).step_by(64).chain([N - 1]) {
            touches.touch(Matrix::A, i, j, true);
            touches.touch(Matrix::B, i, j, true);
        }
    }
    (0..N).for_each(|i| touches.touch_row(Matrix::Unused, i, true));
    for i in 0..N {
        for j in 0..N {
            touches.touch(Matrix::B, i, j, false);
            touches.touch(Matrix::Transposed, j, i, true);
        }
    }
    for i in 0..N {
        for j in 0..N {
            // Two rows side by side, whose few pages stay meanwhile.
            touches.touch_row(Matrix::A, i, false);
            touches.touch_row(Matrix::Transposed, j, false);
            touches.touch(Matrix::Product, i, j, true);
        }
    }
    for i in 0..N {
        for matrix in [Matrix::Product, Matrix::A, Matrix::B] {
            touches.touch_row(matrix, i, false);
        }
    }
    touches.references.finish()
}

/// 19,323 faults under LRU and 12,857 under "MRU" in the paper. Its MRU cannot have been the newest page of
/// all, which has the transposed matrix, though it fits, read again for each row. The newest of each
/// sequence of faults, which is SEQ, has as many as the paper's.
#[test]
fn the_product_of_matrices_has_the_faults_of_table_2() {
    let references = product();
    let policies = ["lru", "seq", "opt", "mru"].map(|name| PolicySpec::parse(name).unwrap());
    let found = sweep(&references, &policies, &[FRAMES], &SweepOptions::default()).unwrap();
    let [lru, seq, opt, mru] = [0, 1, 2, 3].map(|i| found[i].counts.faults);
    assert_eq!(references.pages(), 9766);
    assert!(lru.abs_diff(19_323) < 19_323 / 50, "{lru}");
    assert!(seq.abs_diff(12_857) < 12_857 / 50, "{seq}");
    assert!(opt < seq, "{opt}");
    assert!(mru > 50 * lru, "{mru}");
}
