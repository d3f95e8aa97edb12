//! The functions and words that the language brings along.

use crate::program::{Bit, End, System};

/// What a function does, as one of the commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Function {
    EmptyQ,
    InQ,
    DeQueue,
    EnQueue,
    Request,
    Release,
    Flush,
    Set,
    Ref,
    Mod,
    FindVA,
    FindPA,
    Map,
    UnMap,
    Call,
    CreateQ,
    Count,
    Prefetch,
}

/// What comes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gives {
    Nothing,
    Test,
    Int,
    Page,
}

/// Each function with its names, the first being the usual one, and how it is written. Table I
/// writes `EmptQ` and `Dequeue`, the figures `EmptyQ` and `DeQueue`.
pub(super) const FUNCTIONS: &[(Function, &[&str], &str, Gives)] = &[
    (Function::EmptyQ, &["EmptyQ", "EmptQ"], "EmptyQ(queue)", Gives::Test),
    (Function::InQ, &["InQ"], "InQ(page, queue)", Gives::Test),
    (Function::DeQueue, &["DeQueue", "Dequeue"], "DeQueue(queue, HEAD)", Gives::Page),
    (Function::EnQueue, &["EnQueue", "Enqueue"], "EnQueue(page, queue, TAIL)", Gives::Nothing),
    (Function::Request, &["Request"], "Request(frames)", Gives::Test),
    (Function::Release, &["Release"], "Release(page)", Gives::Nothing),
    (Function::Flush, &["Flush"], "Flush(page)", Gives::Nothing),
    (Function::Set, &["Set"], "Set(page, REFERENCE, RESET)", Gives::Nothing),
    (Function::Ref, &["Ref"], "Ref(page)", Gives::Test),
    (Function::Mod, &["Mod"], "Mod(page)", Gives::Test),
    (Function::FindVA, &["FindVA"], "FindVA(page)", Gives::Int),
    (Function::FindPA, &["FindPA"], "FindPA(address)", Gives::Page),
    (Function::Map, &["Map"], "Map(page, address)", Gives::Nothing),
    (Function::UnMap, &["UnMap", "Unmap"], "UnMap(page)", Gives::Nothing),
    (Function::Call, &["Call"], "Call(event)", Gives::Nothing),
    (Function::CreateQ, &["CreateQ"], "CreateQ(queue)", Gives::Nothing),
    (Function::Count, &["Count"], "Count(queue)", Gives::Int),
    (Function::Prefetch, &["Prefetch"], "Prefetch(address, pages)", Gives::Nothing),
];

/// The function of this name, how it is written, and what comes of it.
pub(super) fn function(name: &str) -> Option<(Function, &'static str, Gives)> {
    FUNCTIONS
        .iter()
        .find(|(_, names, ..)| names.contains(&name))
        .map(|&(function, _, form, gives)| (function, form, gives))
}

/// The usual names of all functions.
pub(super) fn function_names<'a>() -> impl Iterator<Item = &'a str> {
    FUNCTIONS.iter().map(|(_, names, ..)| -> &'a str { names[0] })
}

/// What the system tells under this name.
pub(super) fn system(name: &str) -> Option<System> {
    System::ALL.into_iter().find(|system| system.name() == name)
}

/// An end of a queue.
pub(super) fn end(name: &str) -> Option<End> {
    match name {
        "HEAD" => Some(End::Head),
        "TAIL" => Some(End::Tail),
        _ => None,
    }
}

/// A page's bit.
pub(super) fn bit(name: &str) -> Option<Bit> {
    match name {
        "REFERENCE" | "REFERENCED" => Some(Bit::Referenced),
        "MODIFY" | "MODIFIED" => Some(Bit::Modified),
        _ => None,
    }
}

/// What a bit is set to.
pub(super) fn setting(name: &str) -> Option<bool> {
    match name {
        "SET" => Some(true),
        "RESET" => Some(false),
        _ => None,
    }
}

/// A truth value.
pub(super) fn truth(name: &str) -> Option<bool> {
    match name {
        "TRUE" => Some(true),
        "FALSE" => Some(false),
        _ => None,
    }
}

/// Words with a meaning of their own, which no variable can have for a name.
pub(super) const WORDS: &[&str] = &[
    "HEAD",
    "TAIL",
    "REFERENCE",
    "REFERENCED",
    "MODIFY",
    "MODIFIED",
    "SET",
    "RESET",
    "TRUE",
    "FALSE",
    "NULL",
];
