//! The filter of system calls, made from a list of names.
//!
//! **Invariant:** what is on no list is answered as unknown, so that libraries fall back; what is dangerous is answered as
//! not permitted, so that people understand it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use quorate_plan::boxes::{DANGEROUS, Syscalls};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use super::numbers::number_of;
use super::raw::install_asking_filter;

/// What the kernel's log would be told; a listener is told instead.
const RETURN_LOG: u32 = 0x7ffc_0000;
const RETURN_ASK: u32 = 0x7fc0_0000;
const RETURN_ALLOW: u32 = 0x7fff_0000;
/// "Return this constant".
const RETURN: u16 = 0x06;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// A filter, made and not yet installed.
#[derive(Debug)]
pub(super) enum Filter {
    Deny(BpfProgram),
    /// Denies nothing; each call that is not on the list is asked about.
    Ask(BpfProgram),
}

impl Filter {
    pub(super) fn new(syscalls: Syscalls) -> io::Result<Filter> {
        let allowed = allowed(syscalls.list.names()).map_err(io::Error::other)?;
        if syscalls.audit {
            let mut program = compile(allowed, SeccompAction::Log, SeccompAction::Allow)?;
            for line in &mut program {
                if line.code == RETURN && line.k == RETURN_LOG {
                    line.k = RETURN_ASK;
                }
            }
            return Ok(Filter::Ask(program));
        }
        let dangerous = DANGEROUS.iter().filter_map(|name| number_of(name)).map(|number| (number, Vec::new()));
        let not_permitted = SeccompAction::Errno(libc::EPERM.cast_unsigned());
        let mut program = compile(dangerous.collect(), SeccompAction::Allow, not_permitted)?;
        // What is not dangerous is not yet allowed: instead of ending there, the first program goes over into the second.
        let last = program.pop().filter(|line| line.code == RETURN && line.k == RETURN_ALLOW);
        if last.is_none() {
            return Err(io::Error::other("the filter is not of the form that is known"));
        }
        program.extend(compile(allowed, SeccompAction::Errno(libc::ENOSYS.cast_unsigned()), SeccompAction::Allow)?);
        Ok(Filter::Deny(program))
    }

    /// Installs it for this thread, and what it becomes.
    pub(super) fn install(&self) -> io::Result<Option<OwnedFd>> {
        match self {
            Filter::Ask(program) => install_asking_filter(program).map(Some),
            Filter::Deny(program) => {
                seccompiler::apply_filter(program).map_err(io::Error::other)?;
                Ok(None)
            }
        }
    }
}

fn compile(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> io::Result<BpfProgram> {
    let arch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, otherwise, matched, arch).map_err(io::Error::other)?;
    filter.try_into().map_err(io::Error::other)
}

/// The names as rules; some calls are only allowed with some arguments.
fn allowed(names: &[&str]) -> Result<Rules, seccompiler::BackendError> {
    let mut rules = Rules::new();
    for name in names {
        let Some(number) = number_of(name) else { continue };
        rules.insert(number, conditions(name)?);
    }
    Ok(rules)
}

fn conditions(name: &str) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let condition = |argument, length, operation, value: i64| {
        SeccompCondition::new(argument, length, operation, value.cast_unsigned())
    };
    let (word, long) = (SeccompCmpArgLen::Dword, SeccompCmpArgLen::Qword);
    match name {
        // Processes and threads, but no namespaces.
        "clone" => {
            let flags = libc::CLONE_NEWNS
                | libc::CLONE_NEWUTS
                | libc::CLONE_NEWIPC
                | libc::CLONE_NEWUSER
                | libc::CLONE_NEWPID
                | libc::CLONE_NEWNET
                | libc::CLONE_NEWCGROUP;
            let flags = u64::from(flags.cast_unsigned());
            Ok(vec![SeccompRule::new(vec![condition(0, long, SeccompCmpOp::MaskedEq(flags), 0)?])?])
        }
        // The internet, local sockets, and questions about routes.
        "socket" => {
            let family = |family: i32| condition(0, word.clone(), SeccompCmpOp::Eq, family.into());
            let route = condition(2, word.clone(), SeccompCmpOp::Eq, 0)?;
            // A raw socket reads what others receive.
            let plain = |kind: i32| condition(1, word.clone(), SeccompCmpOp::MaskedEq(0xf), kind.into());
            let mut rules = vec![
                SeccompRule::new(vec![family(libc::AF_UNIX)?])?,
                SeccompRule::new(vec![family(libc::AF_NETLINK)?, route])?,
            ];
            for internet in [libc::AF_INET, libc::AF_INET6] {
                for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
                    rules.push(SeccompRule::new(vec![family(internet)?, plain(kind)?])?);
                }
            }
            Ok(rules)
        }
        // Anything but typing into the terminal in someone's name.
        "ioctl" => {
            let not = |request: u64| condition(1, word.clone(), SeccompCmpOp::Ne, request.cast_signed());
            Ok(vec![SeccompRule::new(vec![not(0x5412)?, not(0x541c)?])?])
        }
        _ => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use quorate_plan::boxes::List;

    use super::*;

    #[test]
    fn both_lists_become_filters_that_the_kernel_takes() {
        for list in [List::Etcd, List::Default] {
            let Filter::Deny(program) = Filter::new(Syscalls { list, audit: false }).unwrap() else { panic!() };
            assert!(program.len() < 4096);
            let Filter::Ask(program) = Filter::new(Syscalls { list, audit: true }).unwrap() else { panic!() };
            assert!(program.iter().any(|line| line.code == RETURN && line.k == RETURN_ASK));
        }
    }
}
