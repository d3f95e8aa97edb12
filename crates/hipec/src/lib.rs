//! HiPEC: a page replacement policy as a small program, checked before it runs and bounded while
//! it does.
//!
//! After P. C. H. Lee, R. C. Chang, M. C. Chen: *HiPEC: A System for Application-customized
//! Virtual-memory Caching Management*, Software: Practice and Experience, 1997.
//!
//! - [`program`] is a program: typed operands and events of 32-bit [`Command`]s, with its binary
//!   form.
//! - [`asm`](mod@asm) is its text form, each way.
//! - [`source`] is the C-like language that people write, compiled to a program.
//! - [`verify`](mod@verify) says whether it may run.
//! - [`compile`](mod@compile) makes it machine code.
//! - [`interpret`] runs it, within a budget of commands; [`policy`] makes it a
//!   [`Policy`](pagekeeper_policy::Policy).
//! - [`load`](mod@load) reads a program in any of its forms; [`text`] a policy as users write it.
#![deny(unsafe_code)]

pub mod asm;
pub mod compile;
mod image;
pub mod interpret;
pub mod load;
mod pages;
pub mod policy;
pub mod program;
pub mod source;
pub mod text;
pub mod verify;

pub use compile::{CompileError, Execution};
pub use load::{Form, LoadError, load};
pub use policy::{Budget, HipecPolicy};
pub use program::{Command, Event, EventNumber, Index, Operand, Program};
pub use verify::{Finding, Verified, verify};
