//! What a registry demands in `WWW-Authenticate`. Source: RFC 9110, section 11, and RFC 6750, section 3.

/// How a registry wants its visitors to prove themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// User and password with each request.
    Basic,
    /// A token, to be fetched at `realm` for `service`.
    Bearer { realm: String, service: Option<String> },
}

impl Challenge {
    /// The best challenge among those of the given headers; `None` when there is none that is understood.
    pub fn parse<'a>(headers: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let all: Vec<_> = headers.into_iter().flat_map(schemes).collect();
        let named = |name: &str| all.iter().find(|(scheme, _)| scheme.eq_ignore_ascii_case(name));
        if let Some((_, parameters)) = named("bearer") {
            let value = |key: &str| {
                let found = parameters.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
                found.map(|(_, value)| value.clone())
            };
            if let Some(realm) = value("realm") {
                return Some(Self::Bearer { realm, service: value("service") });
            }
        }
        named("basic").map(|_| Self::Basic)
    }
}

type Scheme = (String, Vec<(String, String)>);

/// Splits one header into schemes with their parameters. What cannot be read ends it.
fn schemes(header: &str) -> Vec<Scheme> {
    let mut found: Vec<Scheme> = Vec::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let end = rest.find([' ', '\t', ',', '=']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() {
            return found;
        }
        match after.strip_prefix('=') {
            None => {
                found.push((word.to_owned(), Vec::new()));
                rest = after;
            }
            Some(value) => {
                let Some((value, after)) = value_of(value) else { return found };
                match found.last_mut() {
                    Some((_, parameters)) => parameters.push((word.to_owned(), value)),
                    None => return found,
                }
                rest = after;
            }
        }
    }
}

/// A token or a quoted string, and what follows it.
fn value_of(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        return Some((text[..end].to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: Option<&str>) -> Option<Challenge> {
        Some(Challenge::Bearer { realm: realm.into(), service: service.map(str::to_owned) })
    }

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        for (headers, want) in [
            (
                &[r#"Bearer realm="https://auth.docker.io/token",service="docker.io",scope="a:b:pull""#][..],
                bearer("https://auth.docker.io/token", Some("docker.io")),
            ),
            (&[r#"Basic realm="private", charset="UTF-8""#], Some(Challenge::Basic)),
            (&["basic"], Some(Challenge::Basic)),
            (&[r#"Basic realm="a", Bearer realm=https://b/t"#], bearer("https://b/t", None)),
            (&["Basic", r#"bearer realm="say \"x\", y""#], bearer(r#"say "x", y"#, None)),
            (&[r#"Bearer service="no realm""#], None),
            (&[r#"Bearer realm="never ends"#], None),
            (&["Negotiate"], None),
            (&["", "=", "==,,= ", r#"="x""#], None),
            (&[], None),
        ] {
            assert_eq!(Challenge::parse(headers.iter().copied()), want, "{headers:?}");
        }
    }
}
