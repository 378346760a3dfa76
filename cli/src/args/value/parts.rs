//! How a value of a flag falls into parts.

/// The parts of a text between colons. A colon that belongs to a part is written `\:`, a backslash `\\`.
pub(super) fn parts(text: &str) -> Vec<String> {
    split(text, &[':'], &[':', '\\']).into_iter().map(|(_, part)| part).collect()
}

/// As [`parts`], and what stands behind the first comma, between commas; there a colon is like any other character.
/// A comma that belongs to a part is written `\,`.
pub(super) fn escaped_fields(text: &str) -> (Vec<String>, Vec<String>) {
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

/// Notes an option; each may be said once.
pub(super) fn once<T>(option: &str, place: &mut Option<T>, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{option:?} says again what was said before")),
    }
}

/// Permission bits as people write them.
pub(super) fn permissions(text: &str) -> Result<u32, String> {
    let bits = u32::from_str_radix(text, 8).ok().filter(|_| !text.starts_with('+'));
    bits.ok_or_else(|| format!("{text:?} are no permission bits; give octal digits like 1777"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_can_belong_to_a_part() {
        assert_eq!(parts(r"a\b:c\d\:e,f"), [r"a\b", r"c\d:e,f"]);
        let check = |text, head: &[&str], rest: &[&str]| {
            let (found_head, found_rest) = escaped_fields(text);
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
