//! What a health check asks, as people write it.

use warren_types::HttpHeader;

use super::port;

/// Where an HTTP check goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpTarget {
    /// `None` is the lowest container port that the service publishes.
    pub port: Option<u16>,
    /// Begins with `/`.
    pub path: String,
}

/// `[:PORT]/PATH`.
pub fn http_target(text: &str) -> Result<HttpTarget, String> {
    let slash = text
        .find('/')
        .ok_or("give [:PORT]/PATH, like :8080/healthz (an update takes the check away with --no-health)")?;
    let (before, path) = text.split_at(slash);
    let port = match before.strip_prefix(':') {
        None if before.is_empty() => None,
        Some(number) => Some(port(number)?),
        None => {
            let why = "the check goes to the task itself; give [:PORT]/PATH, like :8080/healthz";
            return Err(format!("{before:?} is not a port: {why}"));
        }
    };
    Ok(HttpTarget { port, path: path.to_owned() })
}

/// What a shell runs.
pub fn shell_words(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("is empty; give a command (an update takes the check away with --no-health)".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// `NAME=VALUE`; what either may be is for the spec's own check to say.
pub fn header(text: &str) -> Result<HttpHeader, String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=VALUE, like Host=shop.example")?;
    Ok(HttpHeader { name: name.to_owned(), value: value.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_http_check_has_a_path_and_may_have_a_port() {
        let target = |port, path: &str| Ok(HttpTarget { port, path: path.to_owned() });
        assert_eq!(http_target("/"), target(None, "/"));
        assert_eq!(http_target("/a:1/b?c=d"), target(None, "/a:1/b?c=d"));
        assert_eq!(http_target(":8080/healthz"), target(Some(8080), "/healthz"));
        for (bad, why) in [
            ("", "give [:PORT]/PATH"),
            (":8080", "give [:PORT]/PATH"),
            ("8080/", "\"8080\" is not a port: the check goes to the task itself"),
            ("http://web/", "\"http:\" is not a port"),
            (":0/", "\"0\" is not a port; give one of 1 to 65535"),
            (":/", "\"\" is not a port"),
        ] {
            let found = http_target(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }

    #[test]
    fn headers_are_pairs_and_commands_say_something() {
        assert_eq!(shell_words("test -e /ok"), Ok("test -e /ok".to_owned()));
        assert!(shell_words(" ").is_err());
        let pair = |name: &str, value: &str| Ok(HttpHeader { name: name.into(), value: value.into() });
        assert_eq!((header("Host=a=b"), header("X=")), (pair("Host", "a=b"), pair("X", "")));
        assert!(header("Host: a").unwrap_err().starts_with("give NAME=VALUE"));
    }
}
