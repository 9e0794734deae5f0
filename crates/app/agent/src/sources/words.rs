//! Splits a command into words, as a shell would without doing anything else.

/// Spaces separate words; `'…'` and `"…"` keep them together; `\` keeps the next character.
pub(super) fn split(command: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = command.chars();
    while let Some(character) = characters.next() {
        match character {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        Some('\'') => break,
                        Some(inner) => word.push(inner),
                        None => return Err("a `'` is not closed"),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        Some('"') => break,
                        Some('\\') => word.push(characters.next().ok_or("a `\"` is not closed")?),
                        Some(inner) => word.push(inner),
                        None => return Err("a `\"` is not closed"),
                    }
                }
            }
            '\\' => {
                let next = characters.next().ok_or("it ends with `\\`")?;
                word.get_or_insert_default().push(next);
            }
            space if space.is_whitespace() => words.extend(word.take()),
            plain => word.get_or_insert_default().push(plain),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_a_shell_splits_them() {
        for (command, words) in [
            ("list", vec!["list"]),
            ("  list  --all\t-v\n", vec!["list", "--all", "-v"]),
            ("list 'a b' \"c 'd'\" e\\ f", vec!["list", "a b", "c 'd'", "e f"]),
            ("list --x='a b'c", vec!["list", "--x=a bc"]),
            ("list '' \"\"", vec!["list", "", ""]),
            (r#"list "a \"b\" \\c""#, vec!["list", r#"a "b" \c"#]),
            ("list $HOME | cat", vec!["list", "$HOME", "|", "cat"]),
            ("", vec![]),
        ] {
            assert_eq!(split(command).unwrap(), words, "{command}");
        }
        assert_eq!(split("list 'a"), Err("a `'` is not closed"));
        assert_eq!(split("list \"a"), Err("a `\"` is not closed"));
        assert_eq!(split("list \\"), Err("it ends with `\\`"));
    }
}
