//! The logic around cargo-mutants, on a recorded run.

use super::{
    explained::{Entry, Explained},
    mutant::{self, Mutant},
    outcomes::{Outcome, Outcomes},
    report::{Report, Total},
    room::{self, Room},
    sample,
};

const LISTED: &str = include_str!("../../testdata/mutants/listed.json");
const OUTCOMES: &[u8] = include_bytes!("../../testdata/mutants/outcomes.json");

const ROUTES: &str = "vif/src/annotation/validate.rs:152:21: replace > with >= in routes";
const DESTINATION: &str = "vif/src/annotation/validate.rs:195:12: replace != with == in destination";

fn listed() -> Vec<Mutant> {
    mutant::parse(LISTED).unwrap()
}

fn workspace() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn room(name: &str) -> Room {
    let rooms = room::choose(&workspace(), &[name.to_owned()]).unwrap();
    rooms.into_iter().next().unwrap()
}

/// The report on the recorded run with `explained` as the list, and whether a run with it succeeds: by
/// default, and with --strict.
fn report(explained: &str) -> (String, bool, bool) {
    let (room, mutants, explained) = (room("vif"), listed(), Explained::parse(explained).unwrap());
    let outcomes = Outcomes::parse(OUTCOMES).unwrap();
    let chosen: Vec<&Mutant> = mutants.iter().collect();
    let report = Report::new(&room, &mutants, &chosen, &outcomes, &explained);
    let mut total = Total::default();
    total.add(&report);
    (report.to_string(), total.is_good(), total.is_spotless())
}

#[test]
fn a_mutant_has_the_change_without_its_place_and_the_changed_line_without_the_marker() {
    let mutants = listed();
    let routes = mutants.iter().find(|mutant| mutant.name == ROUTES).unwrap();
    assert_eq!(routes.file, "vif/src/annotation/validate.rs");
    assert_eq!(routes.change, "replace > with >= in routes");
    assert_eq!(routes.becomes, "if routes.len() >= MAX_ROUTES {");
    assert_eq!(
        routes.to_string(),
        "vif/src/annotation/validate.rs:152: replace > with >= in routes\n      if routes.len() >= MAX_ROUTES {"
    );
    // Here the type of the function has a colon.
    assert_eq!(
        mutants[0].change,
        "replace Object<'v>::require -> Result<Cursor<'v>, FieldError> with Ok(Default::default())"
    );
    assert_eq!(mutants[0].becomes, "Ok(Default::default())");
}

#[test]
fn outcomes_of_mutants_are_read_without_the_baseline() {
    let outcomes = Outcomes::parse(OUTCOMES).unwrap();
    assert_eq!(outcomes.of(ROUTES), Some(Outcome::Missed));
    assert_eq!(outcomes.of(DESTINATION), Some(Outcome::Caught));
    assert_eq!(
        outcomes.of("vif/src/cursor.rs:145:23: replace || with && in push_key"),
        Some(Outcome::Timeout)
    );
    assert_eq!(outcomes.of("vif/src/cursor.rs:1:1: replace a with b"), None);
    // The baseline's 130 s are not part of it.
    assert!((outcomes.seconds - 22.12).abs() < 0.001, "{}", outcomes.seconds);

    let unknown = String::from_utf8_lossy(OUTCOMES).replace("MissedMutant", "Mystery");
    let error = Outcomes::parse(unknown.as_bytes()).unwrap_err().to_string();
    assert!(
        error.starts_with("unknown outcome \"Mystery\" of vif/src/annotation/validate.rs:152"),
        "{error}"
    );
}

#[test]
fn the_report_counts_timeouts_as_noticed_and_lists_the_survivors() {
    let (report, good, spotless) = report("");
    assert_eq!(
        report,
        "vif: 75 % caught (2 caught, 1 timeouts, 1 missed, 2 unviable); tested 6 of 6 mutants, 3.7 s each\n  \
         survivor: vif/src/annotation/validate.rs:152: replace > with >= in routes\n      \
         if routes.len() >= MAX_ROUTES {\n"
    );
    assert_eq!((good, spotless), (false, false), "75 % are less than the goal, and one is unexplained");
}

#[test]
fn an_explained_survivor_is_accepted_whatever_the_share() {
    let (report, good, spotless) = report(
        r#"[[survivor]]
           file = "vif/src/annotation/validate.rs"
           change = "replace > with >= in routes"
           becomes = "if routes.len() >= MAX_ROUTES {"
           why = "a reason""#,
    );
    assert!(report.contains("\n  explained in xtask/mutants.toml: vif/src/annotation/validate.rs:152: "));
    assert!(!report.contains("survivor:"), "{report}");
    assert_eq!((good, spotless), (true, true));
}

#[test]
fn an_entry_for_another_place_of_the_function_explains_nothing_and_is_stale() {
    let (report, good, _) = report(
        r#"[[survivor]]
           file = "vif/src/annotation/validate.rs"
           change = "replace > with >= in routes"
           becomes = "if addresses.len() >= MAX_ROUTES {"
           why = "a reason""#,
    );
    assert!(report.contains("\n  survivor: vif/src/annotation/validate.rs:152: "), "{report}");
    let stale =
        "\n  stale in xtask/mutants.toml, no such mutant: vif/src/annotation/validate.rs: replace > with";
    assert!(report.contains(stale), "{report}");
    assert!(!good);
}

#[test]
fn an_entry_for_a_caught_mutant_is_stale_and_fails_strict_runs_only() {
    let both = r#"
        [[survivor]]
        file = "vif/src/annotation/validate.rs"
        change = "replace > with >= in routes"
        why = "a reason"
        [[survivor]]
        file = "vif/src/annotation/validate.rs"
        change = "replace != with == in destination"
        why = "a reason""#;
    let (report, good, spotless) = report(both);
    let stale =
        "\n  stale in xtask/mutants.toml, a test catches it: vif/src/annotation/validate.rs: replace !=";
    assert!(report.contains(stale), "{report}");
    assert_eq!((good, spotless), (true, false));
}

#[test]
fn an_entry_about_an_untested_mutant_is_not_stale() {
    let mutants = listed();
    let list = Explained::parse(
        r#"[[survivor]]
           file = "vif/src/annotation/validate.rs"
           change = "replace != with == in destination"
           why = "a reason""#,
    )
    .unwrap();
    let vif = room("vif");
    let chosen: Vec<&Mutant> = mutants.iter().take(2).collect();
    let report = Report::new(&vif, &mutants, &chosen, &Outcomes::default(), &list);
    let mut total = Total::default();
    total.add(&report);
    assert_eq!((total.is_good(), total.is_spotless()), (true, false), "nothing was tested");
    assert_eq!(
        report.to_string(),
        "vif: nothing tested (0 caught, 0 timeouts, 0 missed, 0 unviable); tested 0 of 6 mutants; \
         2 of the sample untested, for lack of time\n"
    );
}

#[test]
fn mutants_that_were_tested_without_being_chosen_count_too() {
    let (vif, mutants, list) = (room("vif"), listed(), Explained::default());
    let outcomes = Outcomes::parse(OUTCOMES).unwrap();
    let report = Report::new(&vif, &mutants, &[], &outcomes, &list).to_string();
    assert!(
        report.starts_with("vif: 75 % caught (2 caught, 1 timeouts, 1 missed, 2 unviable); tested 6 of 6")
    );
    assert!(report.contains("survivor: ") && !report.contains("untested"), "{report}");
}

#[test]
fn an_entry_in_a_file_of_no_room_is_stale_and_one_without_a_reason_an_error() {
    let list = Explained::parse(
        r#"[[survivor]]
           file = "tests/src/lib.rs"
           change = "x"
           why = "a reason""#,
    )
    .unwrap();
    let mut total = Total::default();
    total.add_strays(&list.outside(&room::all(&workspace()).unwrap()));
    assert!(!total.is_spotless());
    assert!(
        total.to_string().starts_with("stale in xtask/mutants.toml, the file belongs to no room: tests/")
    );

    let error = Explained::parse("[[survivor]]\nfile = \"a\"\nchange = \"b\"\n").unwrap_err().to_string();
    assert!(error.contains("missing field `why`"), "{error}");
}

#[test]
fn the_list_of_the_repository_names_existing_files() {
    let root = workspace();
    let list = Explained::read(&root).unwrap();
    let rooms = room::all(&root).unwrap();
    assert_eq!(list.outside(&rooms), [] as [&Entry; 0]);
    let gone: Vec<&str> = rooms
        .iter()
        .flat_map(|room| list.of(room))
        .map(|entry| entry.file.as_str())
        .filter(|file| !root.join(file).is_file())
        .collect();
    assert_eq!(gone, [] as [&str; 0]);
}

#[test]
fn a_larger_sample_contains_a_smaller_one_and_keeps_the_order_of_the_source() {
    let mutants = listed();
    let names = |size| sample::take(&mutants, size).iter().map(|it| it.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(0), [] as [&str; 0]);
    assert_eq!(names(99), mutants.iter().map(|it| it.name.clone()).collect::<Vec<_>>());
    for size in 1..mutants.len() {
        let (small, large) = (names(size), names(size + 1));
        assert_eq!(small.len(), size);
        assert!(small.iter().all(|name| large.contains(name)));
    }
}

#[test]
fn the_sample_does_not_depend_on_lines() {
    let mutants = listed();
    let moved = mutant::parse(&LISTED.replace(":152:", ":252:").replace(":195:", ":295:")).unwrap();
    let changes = |mutants: &[Mutant]| {
        sample::take(mutants, 3).iter().map(|it| (it.file.clone(), it.change.clone())).collect::<Vec<_>>()
    };
    assert_eq!(changes(&mutants), changes(&moved));
    // Removing what is not in the sample leaves the sample.
    let chosen = changes(&mutants);
    let rest: Vec<Mutant> =
        mutants.iter().filter(|it| chosen.contains(&(it.file.clone(), it.change.clone()))).cloned().collect();
    assert_eq!(changes(&rest), chosen);
}

#[test]
fn equal_changes_of_one_line_are_different_mutants() {
    let twice = LISTED.trim_end().strip_suffix("\n]").unwrap();
    let again = twice.lines().last().unwrap().replace(":139:5:", ":149:5:");
    let mutants = mutant::parse(&format!("{twice},\n{again}\n]")).unwrap();
    assert_eq!(mutants.len(), 7);
    assert_eq!(sample::take(&mutants, 7).len(), 7);
}

#[test]
fn names_are_quoted_for_regular_expressions() {
    assert_eq!(
        sample::exactly("a.rs:1:2: replace f -> Option<u8> with Some(*x)"),
        r"^a\.rs:1:2: replace f \-> Option<u8> with Some\(\*x\)$"
    );
}

#[test]
fn rooms_are_modules_of_the_agent_and_crates_and_each_has_its_files() {
    let root = workspace();
    let names: Vec<String> = room::choose(&root, &[]).unwrap().into_iter().map(|room| room.name).collect();
    assert_eq!(
        names.join(" "),
        "registry watch attach reconcile heal ipam decide shim cluster cni desired events policy \
         ferrule-policy vif ctl"
    );
    let config = room("config");
    assert_eq!((config.package, config.has("agent/src/config.rs")), ("ferrule-agent", true));
    let ipam = room("ipam");
    assert!(ipam.has("agent/src/ipam/pool.rs") && ipam.has("agent/src/ipam.rs"));
    assert!(!ipam.has("agent/src/ipam_tools/mod.rs"));
    assert_eq!(room("shim").files(), ["shim/src.rs", "shim/src/**"]);
    let (of_agent, crate_) = (room("policy"), room("ferrule-policy"));
    assert_eq!((of_agent.package, crate_.package), ("ferrule-agent", "ferrule-policy"));
    assert!(of_agent.has("agent/src/policy/worker.rs") && !of_agent.has("policy/src/trace.rs"));
    assert!(crate_.has("policy/src/trace.rs") && !crate_.has("agent/src/policy/worker.rs"));

    let error = room::choose(&root, &["kitchen".to_owned()]).unwrap_err().to_string();
    assert!(error.starts_with("looking for the room kitchen: failed"), "{error}");
    assert!(error.contains("name one of api, app, attach, "), "{error}");
}

#[test]
fn a_room_is_judged_by_its_own_slow_tests_and_by_no_other_slow_ones() {
    let skipped = |name| room(name).judges().join(" ");
    assert!(skipped("ipam").contains("--skip registry::store::"));
    assert!(!skipped("registry").contains("--skip registry::"));
    assert!(skipped("registry").contains("--skip api::"));
    assert!(!skipped("watch").contains("--skip watch::"));
    assert_eq!(skipped("vif"), "");
}
