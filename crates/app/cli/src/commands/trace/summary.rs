//! The table that strace makes when it counts, read for machines.
//!
//! **Rule:** a line that is no row is passed over; the columns are strace's own.

use serde::Serialize;

use crate::render::{Page, Report};

/// What was counted.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) member: String,
    pub(super) process: String,
    pub(super) pid: u32,
    /// How long it was traced.
    pub(super) seconds: f64,
    pub(super) calls: Vec<Call>,
}

/// One call.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) calls: u64,
    pub(super) errors: u64,
    /// Time of the kernel in it.
    pub(super) seconds: f64,
}

/// Reads rows such as ` 52.64    0.015862          19       812       120 futex`.
pub(super) fn parse(text: &str) -> Vec<Call> {
    text.lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (seconds, calls, errors, name) = match fields.as_slice() {
                [_, seconds, _, calls, errors, name] => (seconds, calls, *errors, name),
                [_, seconds, _, calls, name] => (seconds, calls, "0", name),
                _ => return None,
            };
            let row = Call {
                name: (*name).to_owned(),
                calls: calls.parse().ok()?,
                errors: errors.parse().ok()?,
                seconds: seconds.parse().ok()?,
            };
            (row.name != "total").then_some(row)
        })
        .collect()
}

impl Report for Summary {
    fn render(&self, page: &mut Page) {
        let rows = self.calls.iter();
        page.table(
            ["CALL", "CALLS", "ERRORS", "SECONDS"],
            rows.map(|row| [row.name.clone(), row.calls.to_string(), row.errors.to_string(), row.seconds.to_string()]),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_with_and_without_errors() {
        let text = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 52.64    0.015862          19       812       120 futex
 10.00    0.003000           3       100           write
------ ----------- ----------- --------- --------- ----------------
100.00    0.018862          20       912       120 total
";
        let call = |name: &str, calls, errors, seconds| Call { name: name.to_owned(), calls, errors, seconds };
        assert_eq!(parse(text), [call("futex", 812, 120, 0.015_862), call("write", 100, 0, 0.003)]);
        assert_eq!(parse("strace: nothing"), []);
    }
}
