//! The filter of system calls, made from a list of names.
//!
//! **Invariant:** what is on no list is answered as unknown, so that libraries fall back; what is dangerous is answered as
//! not permitted, so that people understand it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use libc::sock_filter;
use quorate_plan::boxes::{DANGEROUS, Syscalls};

use super::filter::{Condition, Verdict, assemble};
use super::numbers::number_of;
use super::raw::{install_asking_filter, install_filter};

/// Words of the kernel: let it happen; ask whoever listens; answer with an error.
const ALLOW: u32 = 0x7fff_0000;
const ASK: u32 = 0x7fc0_0000;
const ERROR: u32 = 0x0005_0000;
const NOT_PERMITTED: u32 = ERROR | libc::EPERM.cast_unsigned();
const UNKNOWN: u32 = ERROR | libc::ENOSYS.cast_unsigned();

/// The file in memory that is asked for can never be executed. Kernels before 6.3 do not know the word, and refuse it: there are no
/// such files in a box there.
const MEMFD_NOEXEC_SEAL: i32 = 8;

/// All of an argument.
const WHOLE: u32 = u32::MAX;

/// A filter, made and not yet installed.
#[derive(Debug)]
pub(super) enum Filter {
    Deny(Vec<sock_filter>),
    /// Denies nothing; each call that is not on the list is asked about.
    Ask(Vec<sock_filter>),
}

impl Filter {
    /// `executable_data`: whether it may execute what it has written.
    pub(super) fn new(syscalls: &Syscalls, executable_data: bool) -> io::Result<Filter> {
        let otherwise = if syscalls.audit { ASK } else { UNKNOWN };
        let number = |name: &&str| number_of(name).and_then(|number| u32::try_from(number).ok());
        let mut verdicts = BTreeMap::new();
        for name in syscalls.names() {
            if let Some(number) = number(&name) {
                let free = executable_data && name == "memfd_create";
                verdicts.insert(number, if free { Verdict::Is(ALLOW) } else { allowed(name, otherwise) });
            }
        }
        if syscalls.audit {
            return assemble(&verdicts, otherwise).map(Filter::Ask);
        }
        // Last, so that nothing dangerous is allowed by any list.
        verdicts.extend(DANGEROUS.iter().filter_map(number).map(|number| (number, Verdict::Is(NOT_PERMITTED))));
        assemble(&verdicts, otherwise).map(Filter::Deny)
    }

    /// Installs it for this thread, and what it becomes.
    pub(super) fn install(&self) -> io::Result<Option<OwnedFd>> {
        match self {
            Filter::Ask(program) => install_asking_filter(program).map(Some),
            Filter::Deny(program) => install_filter(program).map(|()| None),
        }
    }
}

/// A call of the list; some are only allowed with some arguments.
fn allowed(name: &str, otherwise: u32) -> Verdict {
    let when =
        |argument: u8, mask: u32, is: bool, value: i32| Condition { argument, mask, is, value: value.cast_unsigned() };
    let any_of = match name {
        // Processes and threads, but no namespaces.
        "clone" => {
            let flags = libc::CLONE_NEWNS
                | libc::CLONE_NEWUTS
                | libc::CLONE_NEWIPC
                | libc::CLONE_NEWUSER
                | libc::CLONE_NEWPID
                | libc::CLONE_NEWNET
                | libc::CLONE_NEWCGROUP;
            vec![vec![when(0, flags.cast_unsigned(), true, 0)]]
        }
        // The internet, local sockets, and questions about routes.
        "socket" => {
            let family = |family: i32| when(0, WHOLE, true, family);
            let mut any_of = vec![vec![family(libc::AF_UNIX)], vec![family(libc::AF_NETLINK), when(2, WHOLE, true, 0)]];
            for internet in [libc::AF_INET, libc::AF_INET6] {
                for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
                    // A raw socket reads what others receive.
                    any_of.push(vec![family(internet), when(1, 0xf, true, kind)]);
                }
            }
            any_of
        }
        // Anything but typing into the terminal in someone's name.
        "ioctl" => vec![vec![when(1, WHOLE, false, 0x5412), when(1, WHOLE, false, 0x541c)]],
        // A file in memory, but none that can be executed: no rule about files knows of it.
        "memfd_create" => vec![vec![when(1, MEMFD_NOEXEC_SEAL.cast_unsigned(), true, MEMFD_NOEXEC_SEAL)]],
        _ => return Verdict::Is(ALLOW),
    };
    Verdict::If { any_of, then: ALLOW, otherwise }
}

#[cfg(test)]
mod tests {
    use quorate_plan::boxes::List;
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    };

    use super::super::filter::tests::{run, this_machine};
    use super::*;

    type Rules = BTreeMap<i64, Vec<SeccompRule>>;

    /// The same lists by another maker of filters: what is dangerous by one program, what is allowed by the next.
    fn by_another(list: List) -> [Vec<sock_filter>; 2] {
        let dangerous = DANGEROUS.iter().filter_map(|name| number_of(name)).map(|number| (number, Vec::new()));
        let not_permitted = SeccompAction::Errno(libc::EPERM.cast_unsigned());
        let unknown = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
        let allowed = list.names().iter().filter_map(|name| Some((number_of(name)?, conditions(name).unwrap())));
        [
            compile(dangerous.collect(), SeccompAction::Allow, not_permitted),
            compile(allowed.collect(), unknown, SeccompAction::Allow),
        ]
    }

    fn compile(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Vec<sock_filter> {
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let program: BpfProgram = SeccompFilter::new(rules, otherwise, matched, arch).unwrap().try_into().unwrap();
        program.iter().map(|line| sock_filter { code: line.code, jt: line.jt, jf: line.jf, k: line.k }).collect()
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
            "memfd_create" => {
                let sealed = u64::from(MEMFD_NOEXEC_SEAL.cast_unsigned());
                let value = i64::from(MEMFD_NOEXEC_SEAL);
                Ok(vec![SeccompRule::new(vec![condition(1, word, SeccompCmpOp::MaskedEq(sealed), value)?])?])
            }
            _ => Ok(Vec::new()),
        }
    }

    #[test]
    fn both_lists_become_short_filters_that_judge_as_those_of_another_maker() {
        let socket = |family: i32, kind: i32, protocol| [family as u64, kind as u64, protocol, 0, 0, 0];
        let mut cases = vec![
            [0; 6],
            [u64::MAX; 6],
            [0, 8, 0, 0, 0, 0],
            [0, 9, 0, 0, 0, 0],
            [0, 3, 0, 0, 0, 0],
            [0, 0x5412, 0, 0, 0, 0],
            [0, 0x541c, 0, 0, 0, 0],
        ];
        cases.extend((0..64).map(|bit| [1 << bit, 0x5413, 0, 0, 0, 0]));
        for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET] {
            for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, libc::SOCK_RAW, libc::SOCK_SEQPACKET]
            {
                cases.extend([socket(family, kind, 0), socket(family, kind, 6)]);
            }
        }
        for list in [List::Etcd, List::Default] {
            let Filter::Deny(program) = Filter::new(&Syscalls::of(list), false).unwrap() else { panic!() };
            assert!(program.len() < 400, "{}", program.len());
            let [dangerous, allowed] = by_another(list);
            for number in (0..1024).chain([0x4000_0000, 0x4000_0000 + 59, u32::MAX]) {
                for arguments in &cases {
                    let (verdict, steps) = run(&program, this_machine(), number, *arguments);
                    let other = match run(&dangerous, this_machine(), number, *arguments).0 {
                        ALLOW => run(&allowed, this_machine(), number, *arguments).0,
                        denied => denied,
                    };
                    assert!(verdict == other && steps < 48, "{number} {arguments:x?}: {verdict:#x} {other:#x} {steps}");
                }
            }
            let audit = Syscalls { audit: true, ..Syscalls::of(list) };
            let Filter::Ask(program) = Filter::new(&audit, false).unwrap() else { panic!() };
            let judge = |name: &str| run(&program, this_machine(), number_of(name).unwrap() as u32, [0; 6]).0;
            assert_eq!((judge("read"), judge("mount"), judge("clone3")), (ALLOW, ASK, ASK));
        }
    }

    #[test]
    fn calls_are_allowed_and_denied_by_name_and_none_that_is_dangerous() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<String>>();
        let own =
            Syscalls { allow: names(&["execveat", "mount"]), deny: names(&["kill"]), ..Syscalls::of(List::Default) };
        let judge = |syscalls: &Syscalls, free: bool, name: &str| {
            let Filter::Deny(program) = Filter::new(syscalls, free).unwrap() else { panic!() };
            run(&program, this_machine(), number_of(name).unwrap() as u32, [0; 6]).0
        };
        assert_eq!((judge(&own, false, "execveat"), judge(&own, false, "kill")), (ALLOW, UNKNOWN));
        assert_eq!((judge(&own, false, "mount"), judge(&own, false, "memfd_create")), (NOT_PERMITTED, UNKNOWN));
        assert_eq!(judge(&own, true, "memfd_create"), ALLOW);
        assert_eq!(judge(&Syscalls::of(List::Default), false, "execveat"), UNKNOWN);
    }
}
