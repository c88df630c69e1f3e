"""The special times have the reference's values: consecutive numbers at both ends of 64 bits."""

from holdfast import flow


def test_the_special_times_are_consecutive_at_both_ends() -> None:
    low = [flow.UNSET, flow.UNSTARTED, flow.PRE_STREAM, flow.MIN]
    high = [flow.MAX, flow.POST_STREAM, flow.ONE_OVER_POST_STREAM, flow.DONE]
    assert low == [-(2**63) + place for place in range(4)]
    assert high == [2**63 - 4 + place for place in range(4)]
