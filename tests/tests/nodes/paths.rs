//! Pods reach pods of other nodes by their own addresses.

use ferrule_tests::fabric::with_fabric;

#[test]
fn a_neighbours_pods_are_reached_directly_and_others_by_the_tunnel() {
    with_fabric(&[], |fabric| {
        let [one, two, three] = &fabric.nodes;
        let (a, b, c) = (one.attach("a")?, two.attach("b")?, three.attach("c")?);
        for ((from, near), far) in a.addresses.iter().zip(&b.addresses).zip(&c.addresses) {
            let capture = one.capture()?;
            a.ping(&near.to_string())?;
            a.ping(&far.to_string())?;
            let frames = capture.end()?;
            frames.between(*from, *near).expect_bare()?;
            frames.between(*from, *far).expect_tunnelled(one.addresses[0], three.addresses[0])?;
        }
        Ok(())
    })
    .unwrap();
}
