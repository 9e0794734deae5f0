//! The `--member NAME=URL[,URL]` flags.

use quorate_faults::{Code, Fault, Result};

use super::{RawMember, Roster, quoted};

/// Where such a list came from, as faults name it.
const PROVENANCE: &str = "--member";

/// Reads the flags in their order. A name in two flags stays two members, which [`Roster::check`] refuses.
pub fn parse_member_flags<T: AsRef<str>>(flags: &[T]) -> Result<Roster> {
    let members = flags.iter().map(|flag| parse_one(flag.as_ref())).collect::<Result<Vec<_>>>()?;
    Roster::build(PROVENANCE, members)
}

fn parse_one(flag: &str) -> Result<RawMember> {
    let Some((name, urls)) = flag.split_once('=') else {
        let attempt = format!("cannot read `--member` {}: it has no `=`", quoted(flag));
        return Err(Fault::new(Code::Usage, attempt).hint("write `--member NAME=URL[,URL]`"));
    };
    Ok(RawMember::new(name, urls.split(',').map(str::to_owned).collect()))
}
