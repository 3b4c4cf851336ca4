"""Where this folder is on Python's path, SuperNodes wait less, for which Flower has no setting.

One looks for messages half a second after its last look, not three, and it is missed 30 seconds after its last
heartbeat, not 60.
"""

import sys
import time

if sys.argv[0].endswith("flower-supernode"):
    from flwr.common import constant

    constant.HEARTBEAT_DEFAULT_INTERVAL = 15
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(0.5 if seconds == 3 else seconds)
