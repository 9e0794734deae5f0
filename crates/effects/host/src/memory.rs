//! Memory that is not needed any more, given back to the machine.
//!
//! **Invariant:** nothing that would be lost is given back: of the program's own pages only those that are as they are in its
//! file, from which the kernel brings them again when they are used.

use std::ops::Range;

/// Gives back what lies free in the heap, and the pages of the program that were needed to begin and may never be again.
pub fn give_back() {
    crate::sandbox::give_back_memory();
    let Ok(program) = std::fs::read_link("/proc/self/exe") else { return };
    let Ok(maps) = std::fs::read_to_string("/proc/self/smaps") else { return };
    for range in as_in_the_file(&maps, &program.to_string_lossy()) {
        crate::sandbox::forget_pages(&range);
    }
}

/// The mappings of `program` that nobody can write to and nobody has written to.
fn as_in_the_file(smaps: &str, program: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut open: Option<(Range<usize>, u8)> = None;
    for line in smaps.lines() {
        if let Some(range) = range_of(line) {
            let mut words = line.split_whitespace().skip(1);
            let fixed = words.next().is_some_and(|rights| rights.ends_with('p') && !rights.contains('w'));
            let ours = line.splitn(6, ' ').nth(5).is_some_and(|rest| rest.trim_start() == program);
            open = (fixed && ours).then_some((range, 0));
        } else if matches!(
            line.split_whitespace().collect::<Vec<_>>()[..],
            ["Private_Dirty:" | "Anonymous:", "0", "kB"]
        ) && let Some((range, clean)) = &mut open
        {
            *clean += 1;
            if *clean == 2 {
                found.push(range.clone());
            }
        }
    }
    found
}

/// `55d0c0a00000-55d0c0b00000 r-xp …`.
fn range_of(line: &str) -> Option<Range<usize>> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(address(from)?..address(to)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-2000 r--p 00000000 fe:00 7                          /opt/my quorate
Rss:                   4 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
2000-5000 r-xp 00001000 fe:00 7                          /opt/my quorate
Private_Dirty:         0 kB
Anonymous:             0 kB
5000-6000 r--p 00004000 fe:00 7                          /opt/my quorate
Private_Dirty:         4 kB
Anonymous:             4 kB
6000-7000 rw-p 00005000 fe:00 7                          /opt/my quorate
Private_Dirty:         0 kB
Anonymous:             0 kB
7000-8000 r-xp 00000000 fe:00 8                          /lib/libc.so.6
Private_Dirty:         0 kB
Anonymous:             0 kB
8000-9000 rw-p 00000000 00:00 0 
Private_Dirty:         0 kB
Anonymous:             0 kB
";

    #[test]
    fn only_what_is_as_in_the_programs_file_is_given_back() {
        assert_eq!(as_in_the_file(MAPS, "/opt/my quorate"), [0x1000..0x2000, 0x2000..0x5000]);
        assert_eq!(as_in_the_file(MAPS, "/opt/other"), []);
    }

    #[test]
    fn a_program_goes_on_after_its_pages_were_given_back() {
        let before = std::fs::read_to_string("/proc/self/smaps").expect("what is mapped");
        let program = std::fs::read_link("/proc/self/exe").expect("this program");
        assert!(!as_in_the_file(&before, &program.to_string_lossy()).is_empty());
        give_back();
        // What is relocated at its start is still so: formatting goes through tables of addresses.
        assert_eq!(format!("{:?} {:>4}", Some("still"), 7), "Some(\"still\")    7");
    }
}
