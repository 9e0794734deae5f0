//! The words for waiting and refusing.

use quorate_faults::Code;

use super::step::{Halt, Step};

fn halt(code: Code, why: impl Into<String>, way_out: &str) -> Halt {
    Halt { code, why: why.into(), way_out: way_out.to_owned(), lost: None }
}

pub(super) fn wait(code: Code, why: impl Into<String>, way_out: &str) -> Vec<Step> {
    vec![Step::Wait(halt(code, why, way_out))]
}

pub(super) fn refuse(code: Code, why: impl Into<String>, way_out: &str) -> Vec<Step> {
    vec![Step::Refuse(halt(code, why, way_out))]
}

pub(super) fn refuse_losing(code: Code, why: impl Into<String>, lost: &str, way_out: &str) -> Vec<Step> {
    vec![Step::Refuse(Halt { lost: Some(lost.to_owned()), ..halt(code, why, way_out) })]
}
