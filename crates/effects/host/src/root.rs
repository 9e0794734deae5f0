//! `QUORATE_ROOT`: the dir below which all of our own dirs lie, for trials without root rights and for tests.
//!
//! **Rule:** read in one place; which paths move is decided in `quorate_plan::spec`.

use std::path::{Component, Path};

use quorate_faults::{Code, Fault};

/// The variable.
pub const VARIABLE: &str = "QUORATE_ROOT";

/// The root, if one is set.
pub fn root() -> Result<Option<String>, Fault> {
    match std::env::var(VARIABLE) {
        Ok(root) => checked(&root),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(refused("its value is not UTF-8")),
    }
}

fn checked(root: &str) -> Result<Option<String>, Fault> {
    if root.is_empty() || root == "/" {
        return Ok(None);
    }
    let path = Path::new(root);
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return Err(refused("it must be an absolute path without `..`"));
    }
    Ok(Some(root.to_owned()))
}

fn refused(why: &str) -> Fault {
    Fault::new(Code::Usage, format!("cannot use `{VARIABLE}`: {why}"))
        .hint(format!("set it as in `{VARIABLE}=$PWD/trial quorate run …`, or unset it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_absolute_path_is_a_root() {
        assert_eq!(checked("/tmp/trial").unwrap().as_deref(), Some("/tmp/trial"));
        assert_eq!(checked("").unwrap(), None);
        assert_eq!(checked("/").unwrap(), None);
        for bad in ["trial", "./trial", "/tmp/../etc"] {
            assert_eq!(checked(bad).unwrap_err().code(), Code::Usage, "{bad}");
        }
    }
}
