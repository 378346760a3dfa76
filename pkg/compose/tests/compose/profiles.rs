//! Services of profiles that are not active.

use crate::{json, lines, load_with};

const FILE: &str = "
services:
  foo: {image: foo}
  bar: {image: bar, profiles: [test]}
  baz: {image: baz, profiles: [test], depends_on: [bar]}
  zot: {image: zot, profiles: [debug], depends_on: [bar]}
";

fn services(active: &[&str]) -> Result<String, String> {
    let project = load_with(&[("compose.yaml", FILE)], |source| {
        source.profiles = active.iter().map(|profile| (*profile).to_owned()).collect();
    });
    let names =
        |_| json(&project)["services"].as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    project.as_ref().map(names).map_err(|problems| lines(problems))
}

#[test]
fn only_services_of_active_profiles_are_there() {
    assert_eq!(services(&[]).as_deref(), Ok("foo"));
    assert_eq!(services(&["test"]).as_deref(), Ok("bar baz foo"));
    assert_eq!(services(&["test", "debug"]).as_deref(), Ok("bar baz foo zot"));
    assert_eq!(services(&["*"]).as_deref(), Ok("bar baz foo zot"));
    let found = services(&["debug"]).unwrap_err();
    let expected = "compose.yaml:6:53: services.zot.depends_on.bar: the service \"bar\" is in the profiles test, none \
                    of which is active; activate one with --profile";
    assert!(found.contains(expected), "{found}");
}
