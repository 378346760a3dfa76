//! Parsers for mounts.

use warren_types::{Bytes, Mount, MountSource, Propagation};

use super::split::{permissions, set_once, split_colons, split_colons_and_options};

/// `SOURCE:TARGET[:ro|rw,rprivate|rslave|rshared,nonrecursive]`.
pub fn bind(text: &str) -> Result<Mount, String> {
    let parts = split_colons(text);
    let [path, target, options @ ..] = parts.as_slice() else {
        return Err("give SOURCE:TARGET, like /srv/data:/data".to_owned());
    };
    let (mut read_only, mut propagation, mut alone) = (None, None, None);
    for option in options_of(options)? {
        match option {
            "ro" | "rw" => set_once(option, &mut read_only, option == "ro")?,
            "nonrecursive" => set_once(option, &mut alone, true)?,
            other => {
                let known = "ro, rw, nonrecursive, rprivate, rslave and rshared";
                let unknown = |_| format!("{other:?} is not known; there are {known}");
                set_once(option, &mut propagation, other.parse::<Propagation>().map_err(unknown)?)?;
            }
        }
    }
    let source = MountSource::Bind {
        path: path.clone(),
        propagation: propagation.unwrap_or_default(),
        recursive: alone.is_none(),
    };
    Ok(Mount { target: target.clone(), source, read_only: read_only.unwrap_or_default() })
}

/// `NAME:TARGET[:ro|rw][,subpath=PATH][,nocopy]`; options may start after a colon or a comma.
pub fn volume(text: &str) -> Result<Mount, String> {
    let (head, rest) = split_colons_and_options(text);
    let (name, target, first) = match head.as_slice() {
        [name, target] => (name, target, None),
        [name, target, option] if !option.is_empty() => (name, target, Some(option)),
        [_, _, _] => return Err("nothing follows the last colon; leave it out".to_owned()),
        [_] => return Err("give NAME:TARGET, like data:/var/lib/data".to_owned()),
        _ => return Err("has too many colons; escape a colon in a path as \\:".to_owned()),
    };
    let (mut read_only, mut subpath, mut no_copy) = (None, None, None);
    for option in first.into_iter().chain(&rest) {
        match option.split_once('=') {
            Some(("subpath", path)) => set_once(option, &mut subpath, path.to_owned())?,
            None if option == "ro" || option == "rw" => set_once(option, &mut read_only, option == "ro")?,
            None if option == "nocopy" => set_once(option, &mut no_copy, true)?,
            _ => return Err(format!("{option:?} is not known; there are ro, rw, subpath=PATH and nocopy")),
        }
    }
    let source = MountSource::Volume { name: name.clone(), subpath, no_copy: no_copy.is_some() };
    Ok(Mount { target: target.clone(), source, read_only: read_only.unwrap_or_default() })
}

/// `TARGET[:size=BYTES,mode=OCTAL,exec,ro]`.
pub fn tmpfs(text: &str) -> Result<Mount, String> {
    let parts = split_colons(text);
    let [target, options @ ..] = parts.as_slice() else { return Err("give a path, like /tmp".to_owned()) };
    let (mut size, mut mode, mut exec, mut read_only) = (None, None, None, None);
    for option in options_of(options)? {
        match option.split_once('=') {
            Some(("size", bytes)) => {
                let bytes: Bytes = bytes.parse().map_err(|why| format!("size: {why}"))?;
                set_once(option, &mut size, bytes)?;
            }
            Some(("mode", bits)) => set_once(option, &mut mode, permissions(bits)?)?,
            None if option == "exec" || option == "noexec" => set_once(option, &mut exec, option == "exec")?,
            None if option == "ro" || option == "rw" => set_once(option, &mut read_only, option == "ro")?,
            _ => {
                let known = "size=BYTES, mode=OCTAL, exec, noexec, ro and rw";
                return Err(format!("{option:?} is not known; there are {known}"));
            }
        }
    }
    let source = MountSource::Tmpfs { size, mode, exec: exec.unwrap_or_default() };
    Ok(Mount { target: target.clone(), source, read_only: read_only.unwrap_or_default() })
}

/// The options after the last colon, if any.
fn options_of(parts: &[String]) -> Result<Vec<&str>, String> {
    match parts {
        [] => Ok(Vec::new()),
        [options] if !options.is_empty() => Ok(options.split(',').collect()),
        [_] => Err("nothing follows the last colon; leave it out".to_owned()),
        _ => Err("has too many colons; escape a colon in a path as \\:".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(path: &str, target: &str) -> Mount {
        let source =
            MountSource::Bind { path: path.into(), propagation: Propagation::Private, recursive: true };
        Mount { target: target.into(), source, read_only: false }
    }

    #[test]
    fn bind_mounts_are_source_target_and_options() {
        assert_eq!(bind("/srv:/data"), Ok(bound("/srv", "/data")));
        assert_eq!(bind("/srv:/data:ro"), Ok(Mount { read_only: true, ..bound("/srv", "/data") }));
        assert_eq!(bind("/srv:/data:rw,rprivate"), Ok(bound("/srv", "/data")));
        assert_eq!(bind(r"/a\:b:/c\\d\e"), Ok(bound("/a:b", r"/c\d\e")));
        let source =
            MountSource::Bind { path: "/srv".into(), propagation: Propagation::Slave, recursive: false };
        let expected = Mount { target: "/data".into(), source, read_only: false };
        assert_eq!(bind("/srv:/data:rslave,nonrecursive"), Ok(expected));
        for (bad, why) in [
            ("", "give SOURCE:TARGET"),
            ("/srv", "give SOURCE:TARGET"),
            ("/srv:/data:", "nothing follows the last colon"),
            ("/srv:/data:ro:x", "too many colons"),
            ("/srv:/data:slave", "\"slave\" is not known; there are ro, rw, nonrecursive, rprivate"),
            ("/srv:/data:ro,rw", "option \"rw\" is given twice"),
            ("/srv:/data:rslave,rshared", "option \"rshared\" is given twice"),
            ("/srv:/data:,", "\"\" is not known"),
        ] {
            let found = bind(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }

    #[test]
    fn tmpfs_mounts_are_a_path_and_options() {
        let check = |text, size: Option<u64>, mode, exec, read_only| {
            let source = MountSource::Tmpfs { size: size.map(Bytes), mode, exec };
            assert_eq!(tmpfs(text), Ok(Mount { target: "/tmp".into(), source, read_only }), "{text}");
        };
        check("/tmp", None, None, false, false);
        check("/tmp:size=64Mi,mode=0700,exec", Some(64 << 20), Some(0o700), true, false);
        check("/tmp:ro,noexec", None, None, false, true);
        for (bad, why) in [
            ("/tmp:", "nothing follows"),
            ("/tmp:size=x", "size: \"x\" is not an amount of memory"),
            ("/tmp:mode=9", "\"9\" is not a mode"),
            ("/tmp:mode=+7", "is not a mode"),
            ("/tmp:size=1Mi,size=2Mi", "option \"size=2Mi\" is given twice"),
            ("/tmp:uid=1", "\"uid=1\" is not known"),
            ("/tmp:suid", "\"suid\" is not known"),
            ("/tmp:exec:ro", "too many colons"),
        ] {
            let found = tmpfs(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }

    #[test]
    fn volumes_are_a_name_a_target_and_options() {
        let check = |text, name: &str, target: &str, subpath: Option<&str>, no_copy, read_only| {
            let (name, subpath) = (name.to_owned(), subpath.map(str::to_owned));
            let source = MountSource::Volume { name, subpath, no_copy };
            assert_eq!(volume(text), Ok(Mount { target: target.into(), source, read_only }), "{text}");
        };
        check("data:/data", "data", "/data", None, false, false);
        check("data:/data:ro", "data", "/data", None, false, true);
        check("data:/data:ro,subpath=a/b,nocopy", "data", "/data", Some("a/b"), true, true);
        check("data:/data,subpath=a=b", "data", "/data", Some("a=b"), false, false);
        check("data:/data:nocopy,rw", "data", "/data", None, true, false);
        check("data-{{.Task.Slot}}:/data", "data-{{.Task.Slot}}", "/data", None, false, false);
        check(r"data:/a\:b\,c,subpath=d\,e:f", "data", "/a:b,c", Some("d,e:f"), false, false);
        for (bad, why) in [
            ("", "give NAME:TARGET"),
            ("data", "give NAME:TARGET"),
            ("data:/data:", "nothing follows the last colon"),
            ("data:/data:ro:x", "too many colons"),
            ("data:/data,", "\"\" is not known"),
            ("data:/data:rw,ro", "option \"ro\" is given twice"),
            ("data:/data,subpath=a,subpath=b", "option \"subpath=b\" is given twice"),
            ("data:/data,nocopy=1", "\"nocopy=1\" is not known; there are ro, rw, subpath=PATH and nocopy"),
        ] {
            let found = volume(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }
}
