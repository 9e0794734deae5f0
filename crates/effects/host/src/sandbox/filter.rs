//! Programs for the kernel's filter of system calls: a tree over the numbers, so that a call is judged in a few steps however long
//! the list is, and few instructions are to be checked and compiled whenever a box is made.
//!
//! **Invariant:** every number has one verdict, and every way through a program ends in one; the kernel refuses any other.

use std::collections::BTreeMap;
use std::io;

use libc::sock_filter;

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A constant for the kernel: allow, an error, a question.
    Is(u32),
    /// It depends on arguments: any of these lists of conditions, each of which must hold as a whole.
    If { any_of: Vec<Vec<Condition>>, then: u32, otherwise: u32 },
}

/// Of an argument of the call: its lower half under a mask is, or is not, a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) argument: u8,
    pub(super) mask: u32,
    pub(super) is: bool,
    pub(super) value: u32,
}

/// What a call by another kind of machine's numbers ends in: the process is ended.
const FOREIGN: u32 = 0x8000_0000;

/// Instructions: load a word, keep some bits, jump, jump if equal or if at least, return.
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Where the kernel puts what is to be judged.
const NUMBER_AT: u32 = 0;
const MACHINE_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

/// The kernel takes no longer program.
const LENGTH_MAX: usize = 4096;

/// The program that gives each number its verdict, and all others `otherwise`.
pub(super) fn assemble(verdicts: &BTreeMap<u32, Verdict>, otherwise: u32) -> io::Result<Vec<sock_filter>> {
    let mut program = vec![
        line(LOAD, 0, 0, MACHINE_AT),
        line(IF_EQUAL, 1, 0, machine()?),
        line(RETURN, 0, 0, FOREIGN),
        line(LOAD, 0, 0, NUMBER_AT),
    ];
    program.extend(tree(&ranges(verdicts, otherwise))?);
    if program.len() > LENGTH_MAX {
        return Err(io::Error::other("the filter is too long for the kernel"));
    }
    Ok(program)
}

/// This kind of machine, as the kernel calls it.
fn machine() -> io::Result<u32> {
    match std::env::consts::ARCH {
        "x86_64" => Ok(0xc000_003e),
        "aarch64" => Ok(0xc000_00b7),
        "riscv64" => Ok(0xc000_00f3),
        other => Err(io::Error::other(format!("there is no filter for machines of the kind `{other}`"))),
    }
}

fn line(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Where each range of numbers with one verdict begins; the first with 0.
fn ranges(verdicts: &BTreeMap<u32, Verdict>, otherwise: u32) -> Vec<(u32, Verdict)> {
    let mut ranges: Vec<(u32, Verdict)> = Vec::new();
    let mut add = |from: u32, verdict: Verdict| {
        if ranges.last().is_none_or(|(_, last)| *last != verdict) {
            ranges.push((from, verdict));
        }
    };
    let mut next = 0;
    for (number, verdict) in verdicts {
        if *number > next {
            add(next, Verdict::Is(otherwise));
        }
        add(*number, verdict.clone());
        next = number.saturating_add(1);
    }
    add(next, Verdict::Is(otherwise));
    ranges
}

/// Halves the ranges until one is left. The number has been loaded.
fn tree(ranges: &[(u32, Verdict)]) -> io::Result<Vec<sock_filter>> {
    match ranges {
        [] => Err(io::Error::other("a number without a verdict")),
        [(_, verdict)] => leaf(verdict),
        _ => {
            let (below, above) = ranges.split_at(ranges.len() / 2);
            let (from, below, above) = (above.first().map_or(0, |(from, _)| *from), tree(below)?, tree(above)?);
            let mut lines = match u8::try_from(below.len()) {
                Ok(length) => vec![line(IF_AT_LEAST, length, 0, from)],
                // Farther than a condition can jump.
                Err(_) => {
                    let length = u32::try_from(below.len()).map_err(io::Error::other)?;
                    vec![line(IF_AT_LEAST, 0, 1, from), line(JUMP, 0, 0, length)]
                }
            };
            lines.extend(below);
            lines.extend(above);
            Ok(lines)
        }
    }
}

fn leaf(verdict: &Verdict) -> io::Result<Vec<sock_filter>> {
    let (any_of, then, otherwise) = match verdict {
        Verdict::Is(constant) => return Ok(vec![line(RETURN, 0, 0, *constant)]),
        Verdict::If { any_of, then, otherwise } => (any_of, then, otherwise),
    };
    let mut lines = Vec::new();
    for conditions in any_of {
        // Three lines for each condition, and the verdict when all have held.
        let whole = conditions.len() * 3 + 1;
        for (at, condition) in conditions.iter().enumerate() {
            lines.push(line(LOAD, 0, 0, ARGUMENTS_AT + 8 * u32::from(condition.argument)));
            lines.push(line(AND, 0, 0, condition.mask));
            let away = u8::try_from(whole - at * 3 - 3).map_err(io::Error::other)?;
            let (jt, jf) = if condition.is { (0, away) } else { (away, 0) };
            lines.push(line(IF_EQUAL, jt, jf, condition.value));
        }
        lines.push(line(RETURN, 0, 0, *then));
    }
    lines.push(line(RETURN, 0, 0, *otherwise));
    Ok(lines)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Runs a program as the kernel does: the verdict, and in how many steps.
    pub(crate) fn run(program: &[sock_filter], machine: u32, number: u32, arguments: [u64; 6]) -> (u32, usize) {
        let mut data = [&number.to_le_bytes()[..], &machine.to_le_bytes(), &[0; 8]].concat();
        arguments.iter().for_each(|argument| data.extend(argument.to_le_bytes()));
        let (mut at, mut word, mut steps) = (0, 0_u32, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            (at, steps) = (at + 1, steps + 1);
            let jump = |holds: bool| usize::from(if holds { jt } else { jf });
            match code {
                LOAD => word = u32::from_le_bytes(data[k as usize..k as usize + 4].try_into().unwrap()),
                AND => word &= k,
                JUMP => at += k as usize,
                IF_EQUAL => at += jump(word == k),
                IF_AT_LEAST => at += jump(word >= k),
                0x25 => at += jump(word > k),
                RETURN => return (k, steps),
                other => panic!("an instruction {other:#x}"),
            }
        }
    }

    pub(crate) fn this_machine() -> u32 {
        machine().unwrap()
    }

    #[test]
    fn every_number_has_its_verdict_in_a_few_steps() {
        let mut verdicts = BTreeMap::new();
        // Every third, so that there are more ranges than any list has, and jumps that are too far for a condition.
        for number in (0..1500).step_by(3) {
            verdicts.insert(number, Verdict::Is(1000 + number));
        }
        let program = assemble(&verdicts, 7).unwrap();
        for number in (0..1600).chain([u32::MAX, 0x4000_0000]) {
            let wanted = if number < 1500 && number % 3 == 0 { 1000 + number } else { 7 };
            let (verdict, steps) = run(&program, this_machine(), number, [0; 6]);
            assert!(verdict == wanted && steps < 32, "{number}: {verdict} in {steps}");
            assert_eq!(run(&program, 1, number, [0; 6]).0, FOREIGN);
        }
        assert_eq!(run(&assemble(&BTreeMap::new(), 7).unwrap(), this_machine(), 0, [0; 6]).0, 7);
        let long = (0..4000).map(|number| (number, Verdict::Is(number))).collect();
        assert!(assemble(&long, 7).is_err());
    }

    #[test]
    fn conditions_hold_as_a_whole_and_one_list_is_enough() {
        let when = |argument, mask, is, value| Condition { argument, mask, is, value };
        let any_of = vec![vec![when(0, u32::MAX, true, 5), when(1, 0xf, true, 2)], vec![when(2, u32::MAX, false, 0)]];
        let verdicts = BTreeMap::from([(41, Verdict::If { any_of, then: 1, otherwise: 2 })]);
        let program = assemble(&verdicts, 3).unwrap();
        let judge = |number, arguments: [u64; 3]| {
            let [a, b, c] = arguments;
            run(&program, this_machine(), number, [a, b, c, 0, 0, 0]).0
        };
        assert_eq!((judge(41, [5, 0xf2, 0]), judge(41, [5, 3, 0]), judge(41, [4, 2, 0])), (1, 2, 2));
        assert_eq!((judge(41, [0, 0, 9]), judge(40, [5, 2, 0]), judge(42, [5, 2, 0])), (1, 3, 3));
    }
}
