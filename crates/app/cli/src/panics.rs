//! Turns a panic, on whatever thread, into a fault that says what to report.
//!
//! **Rule:** an operator never sees a raw panic message, and a panic never ends with exit 0.

use std::panic::{AssertUnwindSafe, PanicHookInfo};
use std::sync::Mutex;

use quorate_faults::{Code, Exit, Fault};

/// The first panic of this process: where, and what it said.
static FIRST: Mutex<Option<String>> = Mutex::new(None);

/// Keeps the first panic instead of printing it.
pub(crate) fn install() {
    std::panic::set_hook(Box::new(|info| {
        let mut first = FIRST.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        first.get_or_insert_with(|| describe(info));
    }));
}

/// Runs a command; a panic in it, or on a thread it started, becomes its fault.
pub(crate) fn guard(run: impl FnOnce() -> Result<Exit, Fault>) -> Result<Exit, Fault> {
    // What a panic leaves half-changed is not looked at again: the fault is printed and the process ends.
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(run));
    let first = FIRST.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    match (outcome, first) {
        (Ok(outcome), None) => outcome,
        (_, first) => Err(fault(first.unwrap_or_else(|| "the reason was lost".to_owned()))),
    }
}

fn fault(what: String) -> Fault {
    let version = env!("CARGO_PKG_VERSION");
    Fault::new(Code::Internal, format!("quorate {version} ran into a bug of its own"))
        .hint("please report the cause above, the version and the command line; `quorate explain Q0001` says where")
        .caused_by(what)
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let said = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panicked".to_owned());
    match info.location() {
        Some(place) => format!("{said} ({}:{})", place.file(), place.line()),
        None => said,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_internal_fault_with_its_place() {
        install();
        let fault = guard(|| panic!("index {} out of range", 7)).unwrap_err();
        assert_eq!(fault.code(), Code::Internal);
        let cause = std::error::Error::source(&fault).unwrap().to_string();
        assert!(cause.starts_with("index 7 out of range (") && cause.contains("panics.rs:"), "{cause}");
    }
}
