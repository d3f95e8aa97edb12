//! A program's machine code: where it is kept, and the call into it.
//!
//! The only unsafe code of this crate. What makes the generated code safe to call is said at the
//! call; [`translate`](super::translate) is what has to keep to it.
#![allow(unsafe_code)]
use std::fmt;
use std::sync::Mutex;

use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{CodegenError, isa};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Module, ModuleError, default_libcall_names};

use super::layout::Layout;
use super::{COMPILED_COMMANDS_MAX, CompileError, translate};
use crate::image::{Image, Registers, SYSTEM_EVENTS, system_place};
use crate::interpret::State;
use crate::program::EventNumber;

/// Registers, nodes, bits, integers, commands left, and what the event is told; gives back the
/// commands left if the event has ended, and their complement if it stands before a command for the
/// interpreter.
type Entry =
    unsafe extern "C" fn(*mut Registers, *mut [u32; 4], *mut u8, *mut i64, i64, i64) -> i64;

/// In place of what an event is told (the link of its page, or 0, and 2³² if it came ahead): it
/// began before, and goes on where it stands.
pub(super) const GOES_ON: i64 = -1;

/// The machine code of one image.
pub(crate) struct Native {
    /// Of each event of the system that the program has: the event, and those that it Calls.
    functions: [Option<Entry>; SYSTEM_EVENTS.len()],
    /// Places in the image's code where the function that they belong to can be entered.
    entries: Vec<bool>,
    /// Owns the memory that `functions` point to; `None` only while it is dropped. The lock is for
    /// sharing between threads, and is never taken.
    module: Mutex<Option<JITModule>>,
}

impl Native {
    pub(crate) fn compile(image: &Image) -> Result<Self, CompileError> {
        if image.code.len() > COMPILED_COMMANDS_MAX {
            return Err(CompileError::Commands(image.code.len()));
        }
        let mut module = JITModule::new(JITBuilder::with_isa(host()?, default_libcall_names()));
        let layout = Layout::of(image);
        let functions = match define(&mut module, image, &layout) {
            Ok(functions) => functions,
            Err(error) => {
                // SAFETY: nothing of the module was ever run, and no pointer into it was taken.
                unsafe { module.free_memory() };
                return Err(error);
            }
        };
        let functions = functions.map(|function| {
            let address = module.get_finalized_function(function?);
            // SAFETY: `translate` gives each function this signature, in the host's C convention.
            // The memory is finalized: it is executable, not writable, and lives as long as the
            // module, which lives as long as `functions`.
            Some(unsafe { std::mem::transmute::<*const u8, Entry>(address) })
        });
        Ok(Self { functions, entries: layout.entries, module: Mutex::new(Some(module)) })
    }

    /// Whether an event can be entered before the command at this place.
    #[inline]
    pub(crate) fn is_entry(&self, at: u32) -> bool {
        self.entries.get(at as usize).is_some_and(|is_entry| *is_entry)
    }

    /// Runs an event of the system, from its first command with what it is `told`, or from where it
    /// stands. `state` began as that of the image that this was compiled from. At most `left`
    /// commands, of which it gives back what is left: as it is if the event has ended, else its
    /// complement, and the program stands before a command that was not run.
    #[inline(always)]
    pub(crate) fn run(&self, event: EventNumber, state: &mut State, told: i64, left: i64) -> i64 {
        let Some(function) = system_place(event).and_then(|place| self.functions[place]) else {
            return !left;
        };
        let registers: *mut Registers = &mut *state.registers;
        let memory = state.pages.memory();
        // SAFETY: The pointers are to live memory that nobody else has access to for the time of
        // the call, and each was taken from the whole of what it points to. The code stays there:
        // `self` owns it. It calls nothing, and neither traps nor unwinds: it divides by what it
        // has compared with 0 and -1. What it reads and writes is inside these arrays:
        // - registers, by an operand's index, which is a byte, and callers below `depth`, which is
        //   at most the depth that Calls nest to, which the verifier found to be below 256;
        // - nodes, by a home or a link. Homes are those of operands, whose queues the image made,
        //   of an array's operand and a number that was compared with the array's length, and of
        //   pages, which are of the same numbers (`pages.rs`: their number never changes, and
        //   their nodes come first). Links are of homes or of pages that were admitted, which is
        //   checked for each page that an event is told of;
        // - bits and integers, by a page in an operand, after a comparison with none or where it
        //   is known to hold one. No operand holds the link of a home.
        //   `Pages::admit` makes these arrays reach as far as the page before it is one. Operands
        //   of pages are emptied or set when an event begins, or written before they are read, and
        //   no page leaves before it ends.
        // The verifier saw to it that operands have the types that commands need, and that every
        // path stays inside its event; where the code comes to a place that it has no code for, it
        // leaves to the interpreter.
        unsafe {
            function(
                registers,
                memory.nodes.as_mut_ptr(),
                memory.bits.as_mut_ptr(),
                memory.numbers.as_mut_ptr(),
                left,
                told,
            )
        }
    }

    /// The same from where the event stands, off `left`; whether the event has ended.
    pub(crate) fn go_on(&self, event: EventNumber, state: &mut State, left: &mut u64) -> bool {
        let most = i64::try_from(*left).unwrap_or(i64::MAX);
        let rest = self.run(event, state, GOES_ON, most);
        let rest_commands = if rest < 0 { !rest } else { rest };
        *left -= (most - rest_commands) as u64;
        rest >= 0
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        let module = match self.module.get_mut() {
            Ok(module) => module.take(),
            Err(poisoned) => poisoned.into_inner().take(),
        };
        if let Some(module) = module {
            // SAFETY: machines run the code through an `Arc` of this, so nobody does now, and
            // `functions`, the only pointers into it, go with it.
            unsafe { module.free_memory() };
        }
    }
}

impl fmt::Debug for Native {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Native").finish_non_exhaustive()
    }
}

/// The compiler for this host.
fn host() -> Result<isa::OwnedTargetIsa, CompileError> {
    let host = |why: &dyn fmt::Display| CompileError::Host(why.to_string());
    if cfg!(miri) {
        return Err(host(&"Miri"));
    }
    let mut flags = settings::builder();
    for (name, value) in [
        ("opt_level", "speed"),
        // As cranelift-jit's own builder has it: calls and data may be far from each other.
        ("use_colocated_libcalls", "false"),
        ("is_pic", "false"),
    ] {
        flags.set(name, value).map_err(|error| host(&error))?;
    }
    let builder = cranelift_native::builder().map_err(|error| host(&error))?;
    let isa = builder.finish(settings::Flags::new(flags)).map_err(|error| host(&error))?;
    if isa.pointer_bytes() != 8 {
        return Err(host(&isa.triple()));
    }
    Ok(isa)
}

/// Makes a function for each event of the system that the program has.
fn define(
    module: &mut JITModule,
    image: &Image,
    layout: &Layout,
) -> Result<[Option<FuncId>; SYSTEM_EVENTS.len()], CompileError> {
    let refused = |error: ModuleError| CompileError::Refused(reason(&error));
    let mut context = module.make_context();
    let mut functions = [None; SYSTEM_EVENTS.len()];
    for (event, function) in SYSTEM_EVENTS.into_iter().zip(&mut functions) {
        if image.start_of(event).is_none() {
            continue;
        }
        translate::translate(image, layout, event, &mut context.func, module.isa());
        let id = module.declare_anonymous_function(&context.func.signature).map_err(refused)?;
        module.define_function(id, &mut context).map_err(refused)?;
        module.clear_context(&mut context);
        *function = Some(id);
    }
    module.finalize_definitions().map_err(refused)?;
    Ok(functions)
}

fn reason(error: &ModuleError) -> String {
    match error {
        ModuleError::Compilation(CodegenError::Verifier(errors)) => errors.to_string(),
        error => error.to_string(),
    }
}
