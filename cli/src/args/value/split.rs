//! Splits flag values into parts.

/// Splits at colons. A colon in a part is escaped as `\:`, a backslash as `\\`.
pub(super) fn split_colons(text: &str) -> Vec<String> {
    split(text, &[':'], &[':', '\\']).into_iter().map(|(_, part)| part).collect()
}

/// Splits at commas. A comma in a part is escaped as `\,`, a backslash as `\\`.
pub(super) fn split_commas(text: &str) -> Vec<String> {
    split(text, &[','], &[',', '\\']).into_iter().map(|(_, part)| part).collect()
}

/// As [`split_colons`] up to the first comma; the rest is split at commas, and colons in it have no meaning.
/// A comma in a part is escaped as `\,`.
pub(super) fn split_colons_and_options(text: &str) -> (Vec<String>, Vec<String>) {
    let (mut head, mut rest): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for (before, part) in split(text, &[':', ','], &[':', ',', '\\']) {
        if before == Some(',') {
            rest.push(part);
        } else if let (Some(colon), Some(option)) = (before, rest.last_mut()) {
            option.push(colon);
            option.push_str(&part);
        } else {
            head.push(part);
        }
    }
    (head, rest)
}

/// Each part, and the separator before it.
fn split(text: &str, separators: &[char], escapable: &[char]) -> Vec<(Option<char>, String)> {
    let mut parts = vec![(None, String::new())];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let (_, last) = parts.last_mut().expect("there is always one part");
        match (character, characters.peek()) {
            ('\\', Some(next)) if escapable.contains(next) => {
                last.push(*next);
                characters.next();
            }
            (separator, _) if separators.contains(&separator) => parts.push((Some(separator), String::new())),
            _ => last.push(character),
        }
    }
    parts
}

/// Stores an option; fails if it is given twice.
pub(super) fn set_once<T>(option: &str, target: &mut Option<T>, value: T) -> Result<(), String> {
    match target.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("option {option:?} is given twice")),
    }
}

/// Permission bits in octal.
pub(super) fn permissions(text: &str) -> Result<u32, String> {
    let bits = u32::from_str_radix(text, 8).ok().filter(|_| !text.starts_with('+'));
    bits.ok_or_else(|| format!("{text:?} is not a mode; give octal digits like 1777"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_separators_stay() {
        assert_eq!(split_colons(r"a\b:c\d\:e,f"), [r"a\b", r"c\d:e,f"]);
        let check = |text, head: &[&str], rest: &[&str]| {
            let (found_head, found_rest) = split_colons_and_options(text);
            assert_eq!(
                (found_head.as_slice(), found_rest.as_slice()),
                (&*owned(head), &*owned(rest)),
                "{text}"
            );
        };
        check("", &[""], &[]);
        check("a:b:c,d=1,e:f", &["a", "b", "c"], &["d=1", "e:f"]);
        check(r"a\:b\,c,d\,e\\", &["a:b,c"], &["d,e\\"]);
        check("a,", &["a"], &[""]);
    }

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }
}
