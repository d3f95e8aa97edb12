//! The `pagekeeper` command.
//!
//! One file a command in [`commands`]; what they share is beside them: what a user writes
//! ([`size`], [`policy_list`], [`file_pattern`], [`config`]), what a program needs to run ([`program`],
//! [`signals`]), and what people read ([`report`], [`progress`]).
#![deny(unsafe_code)]

mod account;
mod cli;
mod commands;
mod config;
mod control;
mod failure;
mod file_pattern;
mod job;
mod output;
mod policy_list;
mod policy_text;
mod predict;
mod program;
mod progress;
mod report;
mod sampling;
mod signals;
mod size;
mod threads;
mod trace_input;
mod watch;

use std::process::ExitCode;

fn main() -> ExitCode {
    let command = cli::command_line();
    match commands::run(command) {
        Ok(code) => code,
        Err(failure) => {
            report::say(&format!("{failure}"));
            ExitCode::from(failure.exit_code())
        }
    }
}
