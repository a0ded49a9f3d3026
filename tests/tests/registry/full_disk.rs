//! A full disk under the store.

use super::*;

#[test]
fn corrupt_store_on_a_full_disk_is_refused_and_kept() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        node.stop_agent()?;
        // Sized to the store's content, which leaves no room for a second store.
        let saved = fs::read(STORE)?;
        fs::create_dir_all("/run/full")?;
        sys::run(&format!("mount -t tmpfs -o size={} tmpfs /run/full", saved.len() + 8192))?;
        fs::write("/run/full/registry.redb", b"no database".repeat(saved.len() / 11))?;
        let error = node
            .start_agent_with(&[
                "--standalone",
                "--pod-cidr",
                POD_V4,
                "--pod-cidr",
                POD_V6,
                "--state-dir",
                "/run/full",
            ])
            .map_or_else(|error| format!("{error:#}"), |()| "the agent started".to_owned());
        ensure!(error.contains("is damaged") && error.contains("it is left as it is"), "{error}");
        let left: Vec<_> =
            fs::read_dir("/run/full")?.map(|it| it.map(|it| it.file_name())).collect::<Result<_, _>>()?;
        ensure!(left.len() == 2, "expected a store and a lock, found {left:?}");
        traffic.end()?;
        node.start_agent(&[POD_V4, POD_V6])?;
        lives_on(node, &a, &b)
    })
    .unwrap();
}

#[test]
fn agent_recovers_when_its_full_disk_has_space_again() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        node.stop_agent()?;
        fs::create_dir_all("/run/small")?;
        sys::run("mount -t tmpfs -o size=1536k tmpfs /run/small")?;
        // Sparse, so that allocating the holes can fail later.
        sys::run(&format!("cp --sparse=always {STORE} /run/small/"))?;
        node.start_again_with(&["--state-dir", "/run/small"])?;
        let runtime = node.runtime()?;
        let clean = node.kernel_state()?;
        // Fill the disk; the file grows until space runs out.
        let _ = fs::write("/run/small/others", vec![1; 4 << 20]);
        let mut pods = Vec::new();
        let refused = loop {
            let pod = node.pod(&format!("more-{}", pods.len()))?;
            let answer = runtime.call("ADD", &pod)?;
            if !answer.status.success() {
                break (pod, answer.into_error()?);
            }
            pods.push(pod);
            ensure!(pods.len() < 200, "ADD kept succeeding on a full disk");
        };
        let (pod, error) = refused;
        ensure!(error.code == 11 && error.to_string().contains("registry.redb"), "{error}");
        fs::remove_file("/run/small/others")?;
        sys::wait_until("the agent is ready again", Duration::from_secs(5), || {
            Ok(node.http("/readyz")?.0 == 200)
        })?;
        runtime.add(&pod)?;
        pods.push(pod);
        pods.iter().try_for_each(|pod| runtime.del(pod))?;
        sys::wait_until("the pods' kernel state is removed", Duration::from_secs(5), || {
            Ok(node.kernel_state()? == clean)
        })?;
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}
