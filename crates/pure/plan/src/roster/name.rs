//! Which member names can be carried by etcd's flags, lists and key names.

use quorate_faults::{Code, Fault};

use super::quoted;

/// Longest name that is accepted: the longest DNS name, which is what most names come from.
const NAME_MAX: usize = 253;

/// Says why a name cannot be used, or nothing.
pub(super) fn check_name(name: &str, provenance: &str) -> Result<(), Fault> {
    let trouble = if name.is_empty() {
        "it is empty".to_owned()
    } else if name.trim() != name {
        "it begins or ends with a space".to_owned()
    } else if let Some(bad) = name.chars().find(|c| c.is_control() || matches!(c, '=' | ',')) {
        format!("it contains {}", quoted(&bad.to_string()))
    } else if name.len() > NAME_MAX {
        format!("it is longer than {NAME_MAX} bytes")
    } else {
        return Ok(());
    };
    let attempt =
        format!("cannot use member name {}: {trouble}, in the list from {}", quoted(name), quoted(provenance));
    Err(Fault::new(Code::RosterBadName, attempt)
        .hint("use a name without `=`, `,`, control characters and outer spaces, such as the host's name"))
}
