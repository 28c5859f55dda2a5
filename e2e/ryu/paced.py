# SPDX-License-Identifier: Apache-2.0
"""os-ken's switch tester with a sender that follows the clock.

The tester sends a continuous stream in steps of a sleep of 10 ms, so that the time between
the sleeps lowers its rate. The cases allow 10 %, which a busy machine exceeds. Everything
else is the tester's.
"""

import time

from os_ken.lib import hub
from os_ken.tests.switch import tester


class PacedTester(tester.OfTester):
    """OfTester that sends as many frames as the elapsed time asks for."""

    def _send_packet_thread(self, arg):
        rate = arg['packet_counter_inc'] / tester.CONTINUOUS_THREAD_INTVL
        begin, sent = time.monotonic(), 0
        while self.ingress_event is not None:
            due = int((time.monotonic() - begin) * rate)
            for _ in range(due - sent):
                self.tester_sw.send_packet_out(self._frame(arg))
            sent = due
            hub.sleep(tester.CONTINUOUS_THREAD_INTVL / 2)

    @staticmethod
    def _frame(arg):
        if not arg['randomize']:
            return arg['packet_binary']
        # The cases are Python expressions, as in the tester.
        frame = eval('/'.join(arg['packet_text']), vars(tester))  # pylint: disable=eval-used
        frame.serialize()
        return frame.data
