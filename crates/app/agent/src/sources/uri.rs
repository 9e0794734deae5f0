//! The options behind the `?` of a source: `dns-srv:example.com?ssl=true&server=10.0.0.53`.
//!
//! **Invariant:** an option that is not known is an error that suggests the nearest one.

use quorate_faults::{Fault, Result};
use quorate_plan::roster::{nearest, quoted};

use super::invalid;

/// A source's URI without its scheme, taken apart.
pub(super) struct Parts<'a> {
    /// What stands before the `?`.
    pub(super) place: &'a str,
    options: Vec<(&'a str, &'a str)>,
    uri: String,
}

impl<'a> Parts<'a> {
    /// `known` are the options that this source has.
    pub(super) fn parse(scheme: &str, rest: &'a str, known: &[&str]) -> Result<Parts<'a>> {
        let uri = format!("{scheme}:{rest}");
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options: Vec<(&str, &str)> = Vec::new();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let Some((key, value)) = option.split_once('=') else {
                return Err(invalid(&uri, format!("option {} has no value", quoted(option)))
                    .hint(format!("write {}", quoted(&format!("{option}=VALUE")))));
            };
            if !known.contains(&key) {
                return Err(unknown_option(&uri, key, known));
            }
            if options.iter().any(|(earlier, _)| *earlier == key) {
                return Err(invalid(&uri, format!("option {} is given twice", quoted(key))).hint("give it once"));
            }
            options.push((key, value));
        }
        Ok(Parts { place, options, uri })
    }

    /// An option's value.
    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        self.options.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    /// An option that is true or false.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(other) => {
                let why = format!("option `{key}` is {}, not `true` or `false`", quoted(other));
                Err(self.invalid(why).hint(format!("write `{key}=true` or `{key}=false`")))
            }
        }
    }

    /// A fault about this URI.
    pub(super) fn invalid(&self, why: impl std::fmt::Display) -> Fault {
        invalid(&self.uri, why)
    }
}

fn unknown_option(uri: &str, key: &str, known: &[&str]) -> Fault {
    let fault = invalid(uri, format!("it has no option {}", quoted(key)));
    match nearest(key, known.iter().copied()) {
        Some(near) => fault.hint(format!("did you mean `{near}`?")),
        None => fault
            .hint(format!("its options are {}", known.iter().map(|o| format!("`{o}`")).collect::<Vec<_>>().join(", "))),
    }
}
