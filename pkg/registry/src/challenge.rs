//! Parses the `WWW-Authenticate` header. Source: RFC 9110, section 11, and RFC 6750, section 3.

/// An authentication scheme demanded by a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AuthChallenge {
    /// User and password with each request.
    Basic,
    /// A token, to be fetched at `realm` for `service`.
    Bearer { realm: String, service: Option<String> },
}

impl AuthChallenge {
    /// The best supported challenge among the given headers.
    pub fn parse<'a>(headers: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let all: Vec<_> = headers.into_iter().flat_map(schemes).collect();
        let named = |name: &str| all.iter().find(|(scheme, _)| scheme.eq_ignore_ascii_case(name));
        if let Some((_, parameters)) = named("bearer") {
            let value = |key: &str| {
                let value = parameters.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
                value.map(|(_, value)| value.clone())
            };
            if let Some(realm) = value("realm") {
                return Some(Self::Bearer { realm, service: value("service") });
            }
        }
        named("basic").map(|_| Self::Basic)
    }
}

type SchemeParams = (String, Vec<(String, String)>);

/// Splits one header into schemes with their parameters. Stops at malformed text.
fn schemes(header: &str) -> Vec<SchemeParams> {
    let mut found: Vec<SchemeParams> = Vec::new();
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

/// A token or a quoted string, and the rest of the text.
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

    fn bearer(realm: &str, service: Option<&str>) -> Option<AuthChallenge> {
        Some(AuthChallenge::Bearer { realm: realm.into(), service: service.map(str::to_owned) })
    }

    #[test]
    fn challenge_headers_are_parsed() {
        for (headers, want) in [
            (
                &[r#"Bearer realm="https://auth.docker.io/token",service="docker.io",scope="a:b:pull""#][..],
                bearer("https://auth.docker.io/token", Some("docker.io")),
            ),
            (&[r#"Basic realm="private", charset="UTF-8""#], Some(AuthChallenge::Basic)),
            (&["basic"], Some(AuthChallenge::Basic)),
            (&[r#"Basic realm="a", Bearer realm=https://b/t"#], bearer("https://b/t", None)),
            (&["Basic", r#"bearer realm="say \"x\", y""#], bearer(r#"say "x", y"#, None)),
            (&[r#"Bearer service="no realm""#], None),
            (&[r#"Bearer realm="never ends"#], None),
            (&["Negotiate"], None),
            (&["", "=", "==,,= ", r#"="x""#], None),
            (&[], None),
        ] {
            assert_eq!(AuthChallenge::parse(headers.iter().copied()), want, "{headers:?}");
        }
    }
}
