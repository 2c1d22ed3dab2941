//! Counts that do not depend on the machine's speed: system calls (strace), allocations and instructions
//! (Valgrind's DHAT and Callgrind).

use std::path::Path;
use std::process::Command;

use crate::report::Report;
use crate::subject::Subject;
use crate::{Build, Outcome, load};

/// Counts the system calls of a chat at 1 and at 16 connections.
pub(crate) fn system_calls(builds: &[Build], report: &mut Report) -> Outcome {
    for connections in [1, 16] {
        let scenario = if connections == 1 { "counts@1" } else { "counts@16" };
        each(builds, report, scenario, "syscalls", connections, |log| {
            ["strace", "-f", "-c", "-o", log].map(str::to_owned).to_vec()
        })?;
    }
    Ok(())
}

/// Counts the heap blocks that a chat allocates.
pub(crate) fn allocations(builds: &[Build], report: &mut Report) -> Outcome {
    each(builds, report, "counts@16", "allocations", 16, |log| {
        let log = format!("--log-file={log}");
        let words = ["valgrind", "--tool=dhat", "--dhat-out-file=/dev/null", &log];
        words.map(str::to_owned).to_vec()
    })
}

/// Counts the instructions of a chat outside of the kernel: the steadiest measure of processor time.
pub(crate) fn instructions(builds: &[Build], report: &mut Report) -> Outcome {
    each(builds, report, "counts@16", "instructions", 16, |log| {
        let log = format!("--log-file={log}");
        let words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", &log];
        words.map(str::to_owned).to_vec()
    })
}

/// Runs each build under a program that counts, once for a short and once for a longer load. The
/// difference is what the requests cost without the start and the end of the process.
fn each(
    builds: &[Build],
    report: &mut Report,
    scenario: &'static str,
    figure: &'static str,
    connections: u32,
    under: impl Fn(&str) -> Vec<String>,
) -> Outcome {
    for build in builds {
        let Build::Tollgate { name, program, store } = build else { continue };
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("log");
        let words = under(&log.to_string_lossy());
        available(&words[0])?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let run = |seconds| -> Outcome<(u64, u64)> {
            let gateway = Subject::mock()?;
            let subject = Subject::tollgate(program, gateway.address, store, "", None, &words)?;
            let done = load::saturate(subject.address, "chat", "counted", connections, seconds)?;
            subject.stop()?;
            Ok((done.requests, total(&log)?))
        };
        let (few, few_counted) = run(2)?;
        let (many, many_counted) = run(6)?;
        if many <= few {
            return Err(format!("{name} answered {few} requests in 2 s and {many} in 6 s").into());
        }
        let each = (many_counted as f64 - few_counted as f64) / (many - few) as f64;
        report.add(scenario, name, figure, each);
    }
    Ok(())
}

fn available(program: &str) -> Outcome {
    let found = Command::new(program).arg("--version").output();
    found
        .map(drop)
        .map_err(|error| format!("{program}: {error} (apt-get install {program})").into())
}

/// Reads the number of calls from strace's last line, of blocks from DHAT's total, or of instructions
/// from what Callgrind collected.
fn total(log: &Path) -> Outcome<u64> {
    let text = std::fs::read_to_string(log)?;
    let is_total = |line: &&str| {
        line.ends_with(" total") || line.contains("Total:") || line.contains("Collected : ")
    };
    let line = text.lines().rev().find(is_total);
    let line = line.ok_or_else(|| format!("no total in {text}"))?;
    let number = if let Some((_, blocks)) = line.split_once(" bytes in ") {
        blocks.split(' ').next()
    } else if let Some((_, instructions)) = line.split_once("Collected : ") {
        Some(instructions)
    } else {
        line.split_whitespace().nth(3)
    };
    Ok(number.unwrap_or_default().replace(',', "").parse()?)
}
